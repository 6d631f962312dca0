// What torch asks of a device: the current one, streams (one, in order) and hooks.
#pragma once
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"
#include "random.h"

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device old(c10::kCUDA, current);
    if (d.index() >= 0) current = d.index();
    return old;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  void setDevice(c10::Device d) const override {
    if (d.index() >= 0) current = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) current = d.index();
  }
  c10::Stream stream(c10::Device d) const {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, d.index() < 0 ? current : d.index()));
  }
  c10::Stream getStream(c10::Device d) const override { return stream(d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return stream(d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return stream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

} // namespace

namespace pretend {
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  int getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex current_device() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex i) const override { current = i; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override {
    auto old = current;
    current = i;
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override { return exchangeDevice(i); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return default_random(i); }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override { return make_random(i); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &memory; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kCUDA, current}; }
};
} // namespace pretend

namespace at {
using pretend::CUDAHooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, CUDAHooks)
} // namespace at

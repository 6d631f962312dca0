// Generators of the pretended devices: the CPU's, behind their own device.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "memory.h"

namespace {

struct Random final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Random(c10::DeviceIndex i, at::Generator g)
      : c10::GeneratorImpl(c10::Device(c10::kCUDA, i), c10::DispatchKeySet(c10::DispatchKey::CUDA)), inner(std::move(g)) {}
  void set_current_seed(uint64_t s) override { inner.set_current_seed(s); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& s) override {
    at::detail::check_rng_state(s);
    inner.unsafeGetGeneratorImpl()->set_state(s);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Random* clone_impl() const override { return new Random(device().index(), inner.clone()); }
};

at::Generator make_random(c10::DeviceIndex i) {
  return at::make_generator<Random>(i < 0 ? current : i, at::detail::createCPUGenerator());
}

const at::Generator& default_random(c10::DeviceIndex i) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> v;
    for (c10::DeviceIndex k = 0; k < device_count(); k++) v.push_back(make_random(k));
    return v;
  }();
  return all.at(i < 0 ? current : i);
}

} // namespace

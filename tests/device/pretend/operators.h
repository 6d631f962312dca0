// Operators that have kernels of their own here: what makes tensors, and sets their storage.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>

#include "counts.h"
#include "memory.h"

namespace {

struct Here { // the current device within a scope
  c10::DeviceIndex old;
  explicit Here(std::optional<c10::Device> d) : old(current) {
    if (d && d->index() >= 0) current = d->index();
  }
  ~Here() { current = old; }
};

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  Here here(device);
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  Here here(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

// plain zeros: what forward mode takes for "no tangent" needs no lazy tensor here
at::Tensor zeros(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool>) {
  return at::zeros(size, at::TensorOptions().dtype(dtype).layout(layout).device(device ? *device : at::Device(at::kCUDA, current)));
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", source.device(), "! (in aten::set_)");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  std::vector<int64_t> strides(stride.begin(), stride.end());
  if (strides.size() != size.size()) {
    strides.assign(size.size(), 1);
    for (int64_t i = static_cast<int64_t>(size.size()) - 2; i >= 0; i--) strides[i] = strides[i + 1] * std::max<int64_t>(size[i + 1], 1);
  }
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, {n}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// the math form; where the fused ones are allowed it is noted, as CUDA would take them and they have no second derivative
int64_t choose_sdp(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
                   std::optional<double>, bool) {
  const auto& c = at::globalContext();
  if (c.userEnabledFlashSDP() || c.userEnabledMemEfficientSDP() || c.userEnabledCuDNNSDP()) note("fused attention allowed");
  return 0;
}
struct Stubs {
  Stubs() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_sdp); }
} stubs;

} // namespace

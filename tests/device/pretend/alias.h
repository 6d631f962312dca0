// Tensors of the device as tensors of the CPU on the same memory, and back.
#pragma once
#include <ATen/ATen.h>

#include <map>

#include "memory.h"

namespace {

at::Tensor to_host(const at::Tensor& t) {
  auto* holder = new c10::Storage(t.storage());
  auto* raw = const_cast<void*>(t.storage().data());
  c10::DataPtr ptr(raw, holder, [](void* p) { delete static_cast<c10::Storage*>(p); }, c10::Device(c10::kCPU));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), t.storage().nbytes(), std::move(ptr), c10::GetAllocator(c10::kCPU), true);
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.dim() == 0) impl->set_wrapped_number(t.unsafeGetTensorImpl()->is_wrapped_number());
  return out;
}

struct Wrap {
  c10::Storage host;
  int64_t n;
};

c10::DataPtr wrap_data(const c10::Storage& host, c10::DeviceIndex index) {
  auto n = static_cast<int64_t>(host.nbytes());
  take(n);
  return c10::DataPtr(
      const_cast<void*>(host.data()), new Wrap{host, n},
      [](void* p) {
        auto* w = static_cast<Wrap*>(p);
        used.fetch_sub(w->n);
        delete w;
      },
      c10::Device(c10::kCUDA, index));
}

at::Tensor on_storage(const at::Tensor& host, const c10::Storage& storage) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), host.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return out;
}

struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs; // device tensor, its host alias
  std::map<c10::StorageImpl*, c10::Storage> fresh;
  c10::DeviceIndex index = -1;

  at::Tensor in(const at::Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    if (t._is_zerotensor()) return at::zeros(t.sizes(), at::TensorOptions().dtype(t.dtype()));
    for (auto& [d, h] : pairs)
      if (d.is_same(t)) return h;
    at::Tensor host;
    for (auto& [d, h] : pairs) // two tensors on one storage stay so
      if (d.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) {
        host = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(h.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
        host.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
        if (t.dim() == 0) host.unsafeGetTensorImpl()->set_wrapped_number(t.unsafeGetTensorImpl()->is_wrapped_number());
      }
    if (!host.defined()) host = to_host(t);
    pairs.emplace_back(t, host);
    return host;
  }

  at::Tensor out(const at::Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    for (auto& [d, h] : pairs) {
      if (h.is_same(t)) return d;
    }
    for (auto& [d, h] : pairs)
      if (h.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return on_storage(t, d.storage());
    auto* key = t.storage().unsafeGetStorageImpl();
    auto found = fresh.find(key);
    if (found == fresh.end()) {
      auto storage = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), t.storage().nbytes(), wrap_data(t.storage(), index), &memory, true);
      found = fresh.emplace(key, c10::Storage(storage)).first;
    }
    return on_storage(t, found->second);
  }

  // what an out= variant resized
  void settle() {
    for (auto& [d, h] : pairs) {
      if (d.storage().data() != h.storage().data() || d.storage().nbytes() != h.storage().nbytes()) {
        auto* s = d.storage().unsafeGetStorageImpl();
        s->set_data_ptr_noswap(wrap_data(h.storage(), d.device().index()));
        s->set_nbytes(h.storage().nbytes());
      }
      if (d.sizes() != h.sizes() || d.strides() != h.strides() || d.storage_offset() != h.storage_offset())
        d.unsafeGetTensorImpl()->set_sizes_and_strides(h.sizes(), h.strides(), h.storage_offset());
    }
  }
};

} // namespace

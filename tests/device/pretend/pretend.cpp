// A pretend CUDA: tensors on "cuda" whose memory is host memory and whose kernels are the CPU's, for torch builds
// without CUDA. Mixed devices and wrong generators raise as they do there; memory is counted and can run out.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "counts.h"
#include "fallback.h"
#include "guard.h"
#include "memory.h"
#include "operators.h"
#include "random.h"

namespace {

TORCH_LIBRARY(pretend, m) {
  m.def("counts() -> str", &report);
  m.def("reset() -> ()", &reset);
  m.def("memory() -> int[]", []() -> std::vector<int64_t> { return {used, peak, limit, refused}; });
  m.def("limit(int n) -> ()", [](int64_t n) { limit = n; });
  m.def("device() -> int", []() -> int64_t { return current; });
  m.def("set_device(int i) -> ()", [](int64_t i) { current = static_cast<c10::DeviceIndex>(i); });
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &zeros);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  for (auto* name : {"copy_", "convolution", "_convolution", "convolution_backward", "convolution_overrideable", "as_strided",
                     "view", "_reshape_alias", "unfold", "set_", "resize_", "_local_scalar_dense", "_fused_sdp_choice", "_unsafe_view"})
    if (c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""}))
      m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  // one launch for a list of tensors, where torch would take them one by one
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    if (op.name.rfind("aten::_foreach_", 0) == 0)
      m.impl((op.name + (op.overload_name.empty() ? "" : "." + op.overload_name)).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace

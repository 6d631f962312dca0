// The boxed fallback: refuses what CUDA refuses, counts, and runs the CPU's kernel on the same memory.
#pragma once
#include <torch/library.h>

#include <set>

#include "alias.h"
#include "counts.h"
#include "random.h"

namespace {

using torch::jit::Stack;

const std::set<std::string> ANY_DEVICE = {
    "aten::copy_", "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_index_put_impl", "aten::index_put", "aten::_copy_from", "aten::_copy_from_and_resize"};
const std::set<std::string> SCALARS_TOO = {
    "aten::fill_.Tensor", "aten::masked_fill_.Tensor", "aten::where.self_out", "aten::masked_fill.Tensor_out"};
const std::set<std::string> SYNC = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::nonzero.out", "aten::masked_select", "aten::masked_select.out", "aten::_unique2",
    "aten::equal", "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave.Tensor", "aten::_linalg_eigh.eigenvalues",
    "aten::bincount", "aten::isin.Tensor_Tensor_out"};

// The tensors, device and synchronisation of one call, read from its arguments.
struct Arguments {
  std::vector<at::Tensor> seen;
  std::vector<bool> written;
  std::optional<c10::Device> wanted, common; // asked for; of the tensors on the device
  std::string sync;

  void look(const at::Tensor& t, bool write) {
    if (!t.defined()) return;
    seen.push_back(t);
    written.push_back(write);
  }

  Arguments(const c10::OperatorHandle& op, const std::string& name, const Stack& stack) {
    const auto& schema = op.schema();
    const auto n = schema.arguments().size();
    if (SYNC.count(name)) sync = "sync " + name;
    for (size_t i = 0; i < n; i++) {
      const auto& v = stack[stack.size() - n + i];
      const auto* alias = schema.arguments()[i].alias_info();
      const bool write = alias && alias->isWrite();
      if (v.isTensor()) look(v.toTensor(), write);
      else if (v.isTensorList()) for (const at::Tensor& t : v.toTensorVector()) look(t, write);
      else if (v.isOptionalTensorList()) indices(name, v.toOptionalTensorVector());
      else if (v.isDevice()) wanted = v.toDevice();
      else if (v.isGenerator() && v.toGenerator().defined())
        TORCH_CHECK(v.toGenerator().device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                    v.toGenerator().device().type(), "'");
    }
    for (const auto& t : seen)
      if (t.is_cuda() && !common) common = t.device();
    if (name == "aten::copy_" && seen.size() == 2) {
      if (seen[0].device().is_cpu() && seen[1].is_cuda()) sync = "sync copy device to host";
      else if (seen[0].is_cuda() && seen[1].device().is_cpu()) sync = "copy host to device";
    }
  }

  void indices(const std::string& name, const std::vector<std::optional<at::Tensor>>& all) {
    for (const auto& t : all) {
      if (!t) continue;
      look(*t, false);
      const bool mask = t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte);
      if (mask && ANY_DEVICE.count(name)) sync = "sync index by mask";
    }
  }

  // What CUDA refuses: tensors on two devices, but for scalars that are read and for operators that take any.
  void refuse_mixed(const c10::OperatorHandle& op, const std::string& name) const {
    if (!common) return;
    const bool scalars = op.hasTag(at::Tag::pointwise) || SCALARS_TOO.count(name) || name.rfind("aten::_foreach", 0) == 0;
    for (size_t i = 0; i < seen.size(); i++) {
      const auto there = seen[i].device();
      bool fine = there == *common;
      if (there.is_cuda()) fine = fine || name == "aten::copy_";
      else fine = ANY_DEVICE.count(name) || !there.is_cpu() || (scalars && seen[i].dim() == 0 && !written[i]);
      TORCH_CHECK(fine, "Expected all tensors to be on the same device, but found at least two devices, ", *common, " and ",
                  there, "! (in ", name, ")");
    }
  }

  c10::DeviceIndex index() const {
    if (common) return common->index();
    return wanted && wanted->is_cuda() && wanted->index() >= 0 ? wanted->index() : current;
  }
};

// An argument as the CPU's kernel takes it.
void to_cpu(c10::IValue& v, const std::string& argument, Call& call) {
  if (v.isTensor()) v = call.in(v.toTensor());
  else if (v.isTensorList()) {
    auto list = v.toTensorVector();
    for (auto& t : list) t = call.in(t);
    v = c10::List<at::Tensor>(list);
  } else if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (auto& t : v.toOptionalTensorVector()) made.push_back(t ? std::optional<at::Tensor>(call.in(*t)) : std::nullopt);
    v = made;
  } else if (v.isDevice()) {
    if (v.toDevice().is_cuda()) v = c10::Device(c10::kCPU);
  } else if (v.isGenerator()) {
    auto g = v.toGenerator();
    if (g.defined()) v = static_cast<Random*>(g.unsafeGetGeneratorImpl())->inner;
  } else if (v.isNone() && argument == "generator") {
    v = static_cast<Random*>(default_random(call.index).unsafeGetGeneratorImpl())->inner;
  }
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const Arguments given(op, name, *stack);
  given.refuse_mixed(op, name);
  note(name);
  if (!given.sync.empty()) note(given.sync);
  Call call;
  call.index = given.index();
  const auto n = schema.arguments().size();
  for (size_t i = 0; i < n; i++) to_cpu((*stack)[stack->size() - n + i], schema.arguments()[i].name(), call);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    auto& v = (*stack)[i];
    if (v.isTensor()) v = call.out(v.toTensor());
    else if (v.isTensorList()) {
      auto list = v.toTensorVector();
      for (auto& t : list) t = call.out(t);
      v = c10::List<at::Tensor>(list);
    }
  }
}

} // namespace

// Conjugate and negative views. As on other devices, x.conj() and x.imag are views with a bit set: functionalization below sees the plain
// value. Kernels here stand on the two bits' own dispatch keys, so tensors without a bit never pass them.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <unordered_set>

#include "functional.hpp"

namespace gt {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kBits({DispatchKey::Conjugate, DispatchKey::Negative});

bool hasBit(const at::Tensor& t) { return t.is_conj() || t.is_neg(); }

// The same memory without its bits.
at::Tensor plain(const at::Tensor& t) {
  c10::impl::ExcludeDispatchKeyGuard guard(kBits);
  return at::alias(t);
}

at::Tensor cloned(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  auto result = at::clone(plain(self), format);
  if (self.is_conj()) result = at::_conj_physical(result);
  return self.is_neg() ? at::neg(result) : result;
}

// What a tensor shows, as plain memory.
at::Tensor resolved(const at::Tensor& t) {
  if (!hasBit(t)) return t;
  return isMux(t) ? cloned(t, at::MemoryFormat::Preserve) : t.resolve_conj().resolve_neg();
}

struct BitKernel : c10::OperatorKernel {
  explicit BitKernel(DispatchKey k) : below(c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, k)) {}
  const c10::DispatchKeySet below;
  static c10::IValue* arguments(const c10::OperatorHandle& handle, Stack* stack) { return stack->data() + stack->size() - handle.schema().arguments().size(); }
  void rest(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) const { handle.redispatchBoxed(keys & below, stack); }
};

// A view of a tensor with a bit has it too.
struct View final : BitKernel {
  using BitKernel::BitKernel;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto self = arguments(handle, stack)[0].toTensor();
    const bool mux = isMux(self), conj = self.is_conj(), neg = self.is_neg();
    if (mux && conj && handle.schema().name() == "aten::view_as_real")
      TORCH_CHECK(false, "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can view it as real, use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias the original.");
    if (mux && handle.schema().overload_name() == "dtype")
      TORCH_CHECK(false, "torch.Tensor.view is not supported for ", conj ? "conjugate" : "tensors with negative bit set", conj ? " view tensors" : "", " when converting to a different dtype.");
    rest(handle, keys, stack);
    if (!mux) return;
    const auto set = [&](const at::Tensor& t) {
      if (conj && t.is_complex()) t._set_conj(true);
      if (neg) t._set_neg(true);
    };
    if (stack->back().isTensor()) set(stack->back().toTensor());
    else
      for (const at::Tensor& t : stack->back().toTensorVector()) set(t);
  }
};

struct Clone final : BitKernel {
  using BitKernel::BitKernel;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto self = arguments(handle, stack)[0].toTensor();
    if (!isMux(self)) return rest(handle, keys, stack);
    auto result = cloned(self, stack->back().toOptional<at::MemoryFormat>());
    stack->erase(stack->end() - 2, stack->end());
    stack->push_back(std::move(result));
  }
};

struct Copy final : BitKernel {
  using BitKernel::BitKernel;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto self = stack->end()[-3].toTensor(), source = stack->end()[-2].toTensor();
    if (!isMux(self) && !isMux(source)) return rest(handle, keys, stack);
    auto value = resolved(source);
    if (!isMux(self)) {
      stack->end()[-2] = value.to(self.device());
      return rest(handle, keys, stack);
    }
    if (hasBit(self)) value = value.to(self.scalar_type());
    if (self.is_conj()) value = at::_conj_physical(value);
    if (self.is_neg()) value = at::neg(value);
    plain(self).copy_(value);
    stack->erase(stack->end() - 3, stack->end());
    stack->push_back(self);
  }
};

// Operators whose kernels on other devices read the bits themselves (matrix products and others).
struct Resolve final : BitKernel {
  using BitKernel::BitKernel;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto* list = arguments(handle, stack);
    const auto& schema = handle.schema().arguments();
    at::Tensor written, kept;
    for (size_t i = 0; i < schema.size(); i++) {
      if (!list[i].isTensor() || !isMux(list[i].toTensor()) || !hasBit(list[i].toTensor())) continue;
      const bool writes = schema[i].alias_info() && schema[i].alias_info()->isWrite();
      auto value = resolved(list[i].toTensor());
      if (writes) kept = list[i].toTensor(), written = value;
      list[i] = value;
    }
    rest(handle, keys, stack);
    if (!written.defined()) return;
    kept.copy_(written);
    stack->back() = kept;
  }
};

// _conj, _neg_view: the view that sets the bit, or takes it away.
struct Toggle final : Original {
  Toggle(c10::SafeKernelFunction k, bool c) : Original(std::move(k)), conj(c) {}
  const bool conj;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto self = stack->back().toTensor();
    if (!isMux(self)) return original.callBoxed(handle, keys, stack);
    auto view = plain(self);
    if (self.is_complex()) view._set_conj(self.is_conj() != conj);
    view._set_neg(self.is_neg() == conj);
    stack->back() = view;
  }
};

bool isView(const c10::FunctionSchema& schema) {
  if (schema.arguments().empty() || schema.returns().size() != 1) return false;
  const auto *in = schema.arguments()[0].alias_info(), *out = schema.returns()[0].alias_info();
  return in && out && !in->isWrite() && !out->isWrite();
}

// Handled here by name, or right without: they make a tensor from another's shape, or are made of others.
const std::unordered_set<std::string> kNotResolved{"aten::set_", "aten::conj_physical_", "aten::resolve_conj", "aten::resolve_neg", "aten::neg_", "aten::empty_like", "aten::full_like", "aten::zeros_like", "aten::ones_like", "aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::new_empty", "aten::is_complex", "aten::is_floating_point", "aten::requires_grad_", "aten::detach_", "aten::stride", "aten::size", "aten::resize_", "aten::resize_as_", "aten::storage_offset", "aten::empty_strided", "aten::empty", "aten::_new_zeros_with_same_feature_meta", "aten::_has_same_storage_numel"};

template <class K>
void put(const c10::OperatorName& name, DispatchKey key) {
  static auto& held = *new std::vector<c10::RegistrationHandleRAII>();
  held.push_back(c10::Dispatcher::singleton().registerImpl(name, key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<K>(key)), std::nullopt, nullptr, "mux"));
}

}  // namespace

void registerConjugate() {
  Quiet quiet;
  auto& dispatcher = c10::Dispatcher::singleton();
  replace<Toggle>(dispatcher.findSchemaOrThrow("aten::_conj", ""), true);
  replace<Toggle>(dispatcher.findSchemaOrThrow("aten::_neg_view", ""), false);
  for (auto key : {DispatchKey::Conjugate, DispatchKey::Negative}) {
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != "aten") continue;
      auto handle = dispatcher.findSchema(name);
      if (!handle || handle->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) continue;
      const auto& schema = handle->schema();
      if (schema.name() == "aten::clone" && schema.overload_name().empty()) put<Clone>(name, key);
      else if (schema.name() == "aten::copy_") put<Copy>(name, key);
      else if (schema.name() == "aten::_conj" || schema.name() == "aten::_neg_view") continue;
      else if (isView(schema) && handle->hasKernelForDispatchKey(DispatchKey::Functionalize)) put<View>(name, key);
      else if (handle->hasKernelForDispatchKey(key) && !kNotResolved.count(schema.name()) && !handle->hasTag(at::Tag::inplace_view))
        put<Resolve>(name, key);
    }
  }
}

}  // namespace gt

// What PyTorch's functionalization must do differently for mux: copies that cross devices, results that come back unwrapped, and in-place
// operators whose result would change shape. Each kernel hands everything that isn't mux to the one it replaces.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <unordered_set>

#include "stream.hpp"

namespace gt {
namespace {

using torch::jit::Stack;
namespace fun = at::functionalization::impl;

bool isMux(const at::Tensor& t) { return t.defined() && t.device().type() == kMux && fun::isFunctionalTensor(t); }

at::Tensor inner(const at::Tensor& t) {
  fun::sync(t);
  return fun::from_functional_tensor(t);
}

struct Original : c10::OperatorKernel {
  explicit Original(c10::SafeKernelFunction k) : original(std::move(k)) {}
  c10::SafeKernelFunction original;
};

// Tensor._to_copy: torch's own kernel gives the bare handle back.
struct ToCopy final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    auto& self = (*stack)[stack->size() - n];
    if (!isMux(self.toTensor())) return original.callBoxed(handle, keys, stack);
    self = inner(self.toTensor());
    {
      at::AutoDispatchSkipFunctionalize skip;
      handle.callBoxed(stack);
    }
    auto result = stack->back().toTensor();
    if (result.device().type() == kMux) stack->back() = wrapped(result);
  }
};

// Tensor.lift, lift_fresh: a fresh tensor made of Python data.
struct Lift final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto self = stack->back().toTensor();
    if (self.device().type() != kMux) return original.callBoxed(handle, keys, stack);
    if (!fun::isFunctionalTensor(self)) stack->back() = wrapped(self);
  }
};

// cpu.copy_(mux)
struct CopyInto final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto* arguments = stack->data() + stack->size() - 3;
    auto self = arguments[0].toTensor(), src = arguments[1].toTensor();
    if (fun::isFunctionalTensor(self) || !isMux(src)) return original.callBoxed(handle, keys, stack);
    {
      at::AutoDispatchSkipFunctionalize skip;
      self.copy_(fetchTensor(inner(src)));
    }
    stack->erase(stack->end() - 3, stack->end());
    stack->push_back(self);
  }
};

// Any in-place operator. TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE takes away torch's own check (15 us an operation); here it is done
// on the shape the template knows.
struct InPlace final : Original {
  InPlace(c10::SafeKernelFunction k, std::string n) : Original(std::move(k)), name(std::move(n)) {}
  const std::string name;  // of the out-of-place form
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    auto* arguments = stack->data() + stack->size() - n;
    const auto& self = arguments[0].toTensor();
    if (!isMux(self)) {
      TORCH_CHECK(!anyMux(arguments, n) || self.dim() == 0, "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and mux:0!");
      return original.callBoxed(handle, keys, stack);
    }
    for (size_t i = 0; i < n; i++)  // now, so that the first operator to come is the out-of-place form
      if (arguments[i].isTensor() && isMux(arguments[i].toTensor())) fun::sync(arguments[i].toTensor());
    const auto kept = self;
    const auto sizes = kept.sizes();
    const auto before = inplace;
    struct Restore {
      Inplace before;
      ~Restore() { inplace = before; }
    } restore{before};
    inplace = {&sizes, &name};
    original.callBoxed(handle, keys, stack);
  }
  static bool anyMux(const c10::IValue* arguments, size_t n) {
    for (size_t i = 0; i < n; i++)
      if (arguments[i].isTensor() && isMux(arguments[i].toTensor())) return true;
    return false;
  }
};

const std::unordered_set<std::string> kMayResize{"aten::resize_", "aten::resize_as_", "aten::set_", "aten::copy_", "aten::_resize_output_"};

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

template <class K, class... A>
void replace(std::vector<c10::RegistrationHandleRAII>& held, const c10::OperatorHandle& handle, A&&... more) {
  auto original = handle.getComputedKernelForDispatchKey(c10::DispatchKey::Functionalize);
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<K>(std::move(original), std::forward<A>(more)...));
  held.push_back(c10::Dispatcher::singleton().registerImpl(handle.operator_name(), c10::DispatchKey::Functionalize, std::move(kernel),
                                                           std::nullopt, nullptr, "mux"));
}

}  // namespace

void registerFunctional() {
  static Silent silent;  // torch warns of every kernel that replaces one
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& held = *new std::vector<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  auto find = [&](const char* name) { return dispatcher.findSchemaOrThrow(name, ""); };
  replace<ToCopy>(held, find("aten::_to_copy"));
  replace<Lift>(held, find("aten::lift"));
  replace<Lift>(held, find("aten::lift_fresh"));
  replace<CopyInto>(held, find("aten::copy_"));
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto& text = name.name;
    if (name.getNamespace() != "aten" || text.size() < 3 || text.back() != '_' || text[text.size() - 2] == '_') continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle || kMayResize.count(text) || handle->hasTag(at::Tag::inplace_view)) continue;
    const auto& arguments = handle->schema().arguments();
    if (arguments.empty() || !arguments[0].alias_info() || !arguments[0].alias_info()->isWrite() || arguments[0].type()->kind() != c10::TypeKind::TensorType) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::Functionalize)) continue;
    replace<InPlace>(held, *handle, text.substr(0, text.size() - 1));
  }
}

}  // namespace gt

// What the files that change functionalization for mux share.
#pragma once
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "stream.hpp"

namespace gt {

inline bool isMux(const at::Tensor& t) {
  return t.defined() && t.device().type() == kMux && at::functionalization::impl::isFunctionalTensor(t);
}

// The handle behind a tensor, with every write to its storage applied.
inline at::Tensor inner(const at::Tensor& t) {
  at::functionalization::impl::sync(t);
  return at::functionalization::impl::from_functional_tensor(t);
}

// While it lives, torch doesn't warn of kernels that replace others.
struct Quiet {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } handler;
  c10::WarningUtils::WarningHandlerGuard guard{&handler};
};

// While a normal tensor is written to, values are normal ones, in inference mode too.
struct Normal {
  const bool before = normalValues;
  explicit Normal(const at::Tensor& target) { normalValues = !target.is_inference(); }
  ~Normal() { normalValues = before; }
};

// A kernel that stands before the one it replaces.
struct Original : c10::OperatorKernel {
  explicit Original(c10::SafeKernelFunction k) : original(std::move(k)) {}
  c10::SafeKernelFunction original;
};

// Puts K in the place of the operator's kernel for functionalization, for the life of the process. K gets that kernel, or the one of
// another dispatch key.
template <class K, class... A>
void replaceFrom(c10::DispatchKey key, const c10::OperatorHandle& handle, A&&... more) {
  static auto& held = *new std::vector<c10::RegistrationHandleRAII>();
  auto original = handle.getComputedKernelForDispatchKey(key);
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<K>(std::move(original), std::forward<A>(more)...));
  held.push_back(c10::Dispatcher::singleton().registerImpl(handle.operator_name(), c10::DispatchKey::Functionalize, std::move(kernel),
                                                           std::nullopt, nullptr, "mux"));
}
template <class K, class... A>
void replace(const c10::OperatorHandle& handle, A&&... more) {
  replaceFrom<K>(c10::DispatchKey::Functionalize, handle, std::forward<A>(more)...);
}

}  // namespace gt

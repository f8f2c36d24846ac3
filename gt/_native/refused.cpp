// Kinds of tensors that mux doesn't have: refused by name, wherever they would come to be.
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "stream.hpp"

namespace gt {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  const bool nested = name.find("nested") != std::string::npos || name.find("jagged") != std::string::npos;
  const bool quantized = name.find("quant") != std::string::npos;
  notSupported(name, nested ? "values on mux are dense tensors, not nested ones" : quantized ? "values on mux are dense tensors, not quantized ones" : "values on mux are dense tensors, not sparse ones",
               nested ? "pad the tensors (torch.nn.utils.rnn.pad_sequence) and use a mask"
               : quantized ? "quantize on the CPU, or use torch.fake_quantize_per_tensor_affine"
                           : "use dense tensors (Tensor.to_dense(), torch.nn.Embedding(sparse=False)), or keep sparse tensors on the CPU");
}

// Every operator on a sparse, quantized or nested tensor whose device is mux.
template <class Kind>
void refuseAll(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  refuse(handle.schema().name() + " on a " + Kind::name + " tensor");
}
struct Sparse { static constexpr const char* name = "sparse"; };
struct Quantized { static constexpr const char* name = "quantized"; };
struct Nested { static constexpr const char* name = "nested"; };

template <class Kind>
void fallback(c10::DispatchKey key) {
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);  // for the life of the process
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&refuseAll<Kind>>());
}

struct Refuse final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack*) { refuse(handle.schema().name()); }
};

// Operators that would make such a tensor of dense ones.
bool makesOther(const std::string& name) {
  for (const char* fine : {"fake_quant", "sparse_dim", "sparse_backward", "fused_moving_avg", "dequantize"})
    if (name.find(fine) != std::string::npos) return false;
  for (const char* kind : {"sparse", "quantize", "nested"})
    if (name.find(kind) != std::string::npos) return true;
  return false;
}

}  // namespace

void registerRefused() {
  fallback<Sparse>(c10::DispatchKey::SparsePrivateUse1);
  fallback<Sparse>(c10::DispatchKey::SparseCsrPrivateUse1);
  fallback<Quantized>(c10::DispatchKey::QuantizedPrivateUse1);
  fallback<Nested>(c10::DispatchKey::NestedTensorPrivateUse1);
  auto& held = *new std::vector<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten" || !makesOther(name.name)) continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    // A kernel for every device stands before a fallback: it is replaced by name. One made of other operators has none below autograd.
    std::vector<c10::DispatchKey> keys{c10::DispatchKey::PrivateUse1};
    if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) keys = {c10::DispatchKey::AutogradPrivateUse1};
    else if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) keys.insert(keys.end(), {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1});
    for (auto key : keys)
      held.push_back(dispatcher.registerImpl(name, key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Refuse>()), std::nullopt, nullptr, "mux"));
  }
}

}  // namespace gt

// Autocast on mux: PyTorch's own lists of operators, those of CUDA; whatever isn't in a list passes unchanged.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "stream.hpp"

namespace gt {
namespace {

at::Tensor bceBanned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
                     "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
                     "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
                     "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
                     "safe to autocast.");
}

}  // namespace

void registerAutocast() {
  using namespace at::autocast;
  using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;  // the macros name them so
  static torch::Library rest(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  rest.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
#define GT_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define GT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define GT_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define GT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(GT_LOWER)
  AT_FORALL_FP32(GT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(GT_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(GT_PROMOTE)
#undef GT_LOWER
#undef GT_FP32
#undef GT_FP32_DTYPE
#undef GT_PROMOTE
  m.impl("binary_cross_entropy", &bceBanned);
}

}  // namespace gt

// Operators that PyTorch gives a kernel only on some devices, written as others, and operators whose answer is Python's, not a tensor.
#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/library.h>

#include "stream.hpp"

namespace gt {
namespace {

using at::Tensor;
using Optional = const std::optional<Tensor>&;

Tensor biased(const Tensor& gates, Optional bias) { return bias && bias->defined() ? gates + *bias : gates; }

// The equations of torch.nn.LSTMCell. PyTorch takes its fused cell on every outside device; CPU workers have none. The third result is the
// fused kernel's workspace, which only its own backward reads.
std::tuple<Tensor, Tensor, Tensor> lstmCell(const Tensor& inputGates, const Tensor& hiddenGates, const Tensor& cx, Optional inputBias, Optional hiddenBias) {
  const auto gates = biased(inputGates, inputBias) + biased(hiddenGates, hiddenBias);
  const auto part = gates.unsafe_chunk(4, 1);
  const auto cy = part[1].sigmoid() * cx + part[0].sigmoid() * part[2].tanh();
  return {part[3].sigmoid() * cy.tanh(), cy, gates};
}

// The equations of torch.nn.GRUCell.
std::tuple<Tensor, Tensor> gruCell(const Tensor& inputGates, const Tensor& hiddenGates, const Tensor& hx, Optional inputBias, Optional hiddenBias) {
  const auto i = biased(inputGates, inputBias).unsafe_chunk(3, 1), h = biased(hiddenGates, hiddenBias).unsafe_chunk(3, 1);
  const auto reset = (h[0] + i[0]).sigmoid(), update = (h[1] + i[1]).sigmoid(), fresh = (i[2] + h[2] * reset).tanh();
  return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh}, 1)};
}

// PyTorch spares outside devices this look at the values; with unknown classes it looks at them anyway.
Tensor oneHot(const Tensor& self, int64_t classes) {
  if (classes == -1 && self.scalar_type() == at::kLong && self.numel() > 0)
    TORCH_CHECK(self.min().item().toLong() >= 0, "Class values must be non-negative.");
  return at::native::one_hot(self, classes);
}

// Waits, as on CUDA: a matrix that can't be inverted is an error of this line.
void linalgCheckErrors(const Tensor& info, c10::string_view name, bool isMatrix) { at::_linalg_check_errors(fetchTensor(info), name, isMatrix); }

std::vector<int64_t> numbers(const Tensor& lengths) {
  TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), false), "input_lengths and target_lengths must be integral");
  const auto host = lengths.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// Lengths may live on either device; every kernel wants them as numbers.
Tensor ctcLoss(const Tensor& logProbs, const Tensor& targets, const Tensor& inputLengths, const Tensor& targetLengths, int64_t blank, int64_t reduction, bool zeroInfinity) {
  return at::ctc_loss(logProbs, targets, numbers(inputLengths), numbers(targetLengths), blank, reduction, zeroInfinity);
}

}  // namespace

void registerComposed() {
  // Above autograd where the parts have derivatives of their own, and below for tensors without (inference mode).
  static torch::Library above(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  static torch::Library below(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (auto* m : {&above, &below}) {
    m->impl("_thnn_fused_lstm_cell", lstmCell);
    m->impl("_thnn_fused_gru_cell", gruCell);
  }
  above.impl("one_hot", oneHot);
  below.impl("_linalg_check_errors", linalgCheckErrors);
  above.impl("ctc_loss.Tensor", ctcLoss);
}

}  // namespace gt

// What PyTorch's internal kernels take on trust and a client that writes its own protocol need not keep: checked here for operators that
// programs need and that crash on nonsense (found by running every operator of the registry on it). Knows operators' arguments; no sessions.
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace gt::worker {

using Guard = void (*)(const std::vector<c10::IValue>&);

namespace guards {

// _fft_*(self, dim, ...): the callers in front of these wrap and check dim.
inline void transformed(const std::vector<c10::IValue>& a) {
  const auto ndim = a[0].toTensor().dim();
  const auto dims = a[1].toIntVector();
  TORCH_CHECK_INDEX(!dims.empty(), "a Fourier transform over no dimension");
  for (size_t i = 0; i < dims.size(); ++i) {
    TORCH_CHECK_INDEX(dims[i] >= 0 && dims[i] < ndim, "Dimension out of range (expected to be in range of [0, ", ndim - 1, "], but got ", dims[i], ")");
    for (size_t j = 0; j < i; ++j) TORCH_CHECK(dims[i] != dims[j], "dim ", dims[i], " appears twice");
    TORCH_CHECK(a[0].toTensor().size(dims[i]) > 0, "a Fourier transform over an empty dimension");
  }
}

// A list of tensors for each of another.
inline void alike(const std::vector<c10::IValue>& a) {
  TORCH_CHECK(a[0].toTensorList().size() == a[1].toTensorList().size(), "Tensor lists must have the same number of tensors, got ",
              a[0].toTensorList().size(), " and ", a[1].toTensorList().size());
  TORCH_CHECK(a[0].toTensorList().size() > 0, "Tensor list must have at least one tensor.");
}

// (input, four tensors or None that have an element a channel, ...)
inline void normalized(const std::vector<c10::IValue>& a) {
  const auto& input = a[0].toTensor();
  TORCH_CHECK(input.dim() >= 2, "Expected more than 1 dimension, got input size ", input.sizes());
  const bool stats = a.size() == 8;  // (input, weight, bias, running mean, running var, training, momentum, eps), else without the running two
  const bool training = a[stats ? 5 : 3].toBool();
  TORCH_CHECK(training || (stats && a[3].isTensor() && a[3].toTensor().defined() && a[4].isTensor() && a[4].toTensor().defined()),
              "batch norm needs running statistics where it doesn't train");
  for (size_t i = 1; i < 5 && i < a.size(); ++i)
    if (a[i].isTensor() && a[i].toTensor().defined())
      TORCH_CHECK(a[i].toTensor().numel() == input.size(1), "expected ", input.size(1), " elements, one a channel, got ", a[i].toTensor().sizes());
}

// _weight_norm_interface(v, g, dim) and, with other tensors first, its backward.
inline void weightNorm(const std::vector<c10::IValue>& a) {
  const auto& v = a[0].toTensor();
  const auto dim = a[2].toInt();
  TORCH_CHECK(v.dim() > 0 && v.numel() > 0, "weight_norm of a tensor without elements");
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1, "weight_norm over dimension ", dim, ": only the first or the last");
  TORCH_CHECK(a[1].toTensor().numel() == v.size(dim), "expected ", v.size(dim), " norms, got ", a[1].toTensor().numel());
}

// reflection_pad*_backward(grad, self, padding), replication_pad*_backward alike
inline void padded(const std::vector<c10::IValue>& a) {
  const auto &grad = a[0].toTensor(), &self = a[1].toTensor();
  const auto padding = a[2].toIntVector();
  const auto n = static_cast<int64_t>(padding.size() / 2);
  TORCH_CHECK(grad.scalar_type() == self.scalar_type(), "gradients of ", grad.scalar_type(), " for ", self.scalar_type());
  TORCH_CHECK(padding.size() % 2 == 0 && self.dim() > n && self.dim() <= n + 2 && grad.dim() == self.dim(), "padding ", padding, " of ", self.sizes(), " doesn't give ", grad.sizes());
  for (int64_t d = 0; d < self.dim(); ++d) {
    const int64_t from_end = self.dim() - 1 - d;
    int64_t more = 0;
    if (from_end < n) {
      const auto low = padding[2 * from_end], high = padding[2 * from_end + 1];
      TORCH_CHECK(low < self.size(d) && high < self.size(d) && low > -self.size(d) && high > -self.size(d), "padding ", padding, " is too large for ", self.sizes());
      more = low + high;
    }
    TORCH_CHECK(grad.size(d) == self.size(d) + more, "padding ", padding, " of ", self.sizes(), " doesn't give ", grad.sizes());
  }
}

// _pdist_backward(grad, self, p, pdist)
inline void distances(const std::vector<c10::IValue>& a) {
  const auto& self = a[1].toTensor();
  TORCH_CHECK(self.dim() == 2, "pdist only supports 2D tensors, got: ", self.dim(), "D");
  const int64_t n = self.size(0), pairs = n * (n - 1) / 2;
  TORCH_CHECK(a[0].toTensor().numel() == pairs && a[3].toTensor().numel() == pairs, "expected ", pairs, " distances and gradients");
}

// fractional_max_pool*_backward(grad, self, kernel, output, indices)
inline void pooled(const std::vector<c10::IValue>& a) {
  const auto &grad = a[0].toTensor(), &self = a[1].toTensor(), &indices = a[4].toTensor();
  const auto kernel = a[2].toIntVector(), output = a[3].toIntVector();
  const auto n = static_cast<int64_t>(output.size());
  TORCH_CHECK(kernel.size() == output.size() && (self.dim() == n + 1 || self.dim() == n + 2) && grad.dim() == self.dim(), "shapes of a pooling that don't fit");
  TORCH_CHECK(indices.sizes() == grad.sizes(), "indices ", indices.sizes(), " of gradients ", grad.sizes());
  int64_t places = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const int64_t i = d - (self.dim() - n);
    TORCH_CHECK(i < 0 ? grad.size(d) == self.size(d) : grad.size(d) == output[i], "gradients ", grad.sizes(), " of a pooling to ", output);
    if (i >= 0) places *= self.size(d);
  }
  if (indices.numel() > 0)
    TORCH_CHECK_INDEX(indices.min().item<int64_t>() >= 0 && indices.max().item<int64_t>() < places, "an index outside of what was pooled");
}

}  // namespace guards

// The check before a call of `base`, or nothing.
inline Guard guardOf(const std::string& base) {
  static const std::unordered_map<std::string, Guard> all = {
      {"aten::_fft_c2c", guards::transformed}, {"aten::_fft_r2c", guards::transformed}, {"aten::_fft_c2r", guards::transformed},
      {"aten::_foreach_copy", guards::alike},
      {"aten::native_batch_norm", guards::normalized}, {"aten::_native_batch_norm_legit", guards::normalized},
      {"aten::_weight_norm_interface", guards::weightNorm},
      {"aten::reflection_pad1d_backward", guards::padded}, {"aten::reflection_pad2d_backward", guards::padded},
      {"aten::reflection_pad3d_backward", guards::padded}, {"aten::replication_pad1d_backward", guards::padded},
      {"aten::replication_pad2d_backward", guards::padded}, {"aten::replication_pad3d_backward", guards::padded},
      {"aten::_pdist_backward", guards::distances},
      {"aten::fractional_max_pool2d_backward", guards::pooled}, {"aten::fractional_max_pool3d_backward", guards::pooled}};
  const auto found = all.find(base);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace gt::worker

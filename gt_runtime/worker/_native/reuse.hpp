// Dying inputs are reused. Values never change while anybody can see them; but an input that the very next order frees, and that nothing
// else on this worker refers to, may become the output: the operator's in-place twin (`add_` for `add`) then writes where the input lies.
// So an optimiser's step needs no second copy of what it updates. Knows templates, words and tensors; decides, runs nothing.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <vector>

#include "definition.hpp"
#include "gt_runtime/protocol/words.hpp"
#include "layout.hpp"

namespace gt::worker {
namespace detail {

// How many inputs stand in an argument.
inline int32_t inputsOf(const Node& node) {
  if (node.kind == Node::INPUT) return 1;
  int32_t n = 0;
  for (const auto& item : node.items) n += inputsOf(item);
  return n;
}

inline bool onlyInputs(const Node& node) {
  if (node.kind == Node::INPUT) return true;
  return node.kind == Node::TENSORS && std::all_of(node.items.begin(), node.items.end(), [](const Node& n) { return n.kind == Node::INPUT; });
}

// A fused optimiser is said to write its gradients, and does so only if it unscales them.
inline bool leavesAlone(const Template& t, const c10::FunctionSchema& twin, size_t argument) {
  if (twin.arguments()[argument].name() != "grads" || twin.name().rfind("aten::_fused_", 0) != 0) return false;
  const auto scale = twin.argumentIndexWithName("grad_scale");
  return scale && t.arguments[*scale].kind == Node::CONSTANT && t.arguments[*scale].value.isNone();
}

// Finds the in-place twin of a resolved template: the same arguments, and what it writes are, in order, what the operator returns.
inline void findTwin(Template& t) {
  if (!t.op || t.view || t.identity || t.layout_matters || t.blank != Template::Blank::NO || !t.shielded.empty() || (t.flags & words::DYNAMIC))
    return;
  const auto& pure = t.op->schema();
  auto twin = c10::Dispatcher::singleton().findSchema({pure.name() + "_", pure.overload_name()});
  if (!twin) return;
  const auto& writing = twin->schema().arguments();
  if (writing.size() != pure.arguments().size() || writing.size() != t.arguments.size()) return;
  std::vector<Template::Donor> donors;
  size_t written = 0;
  int32_t next = 0;
  for (size_t i = 0; i < writing.size(); ++i) {
    if (writing[i].name() != pure.arguments()[i].name() || *writing[i].type() != *pure.arguments()[i].type()) return;
    const int32_t first = next;
    next += inputsOf(t.arguments[i]);
    const auto* alias = writing[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (written == pure.returns().size() || *pure.returns()[written].type() != *writing[i].type() || !onlyInputs(t.arguments[i])) return;
    ++written;
    for (int32_t input = first; input < next; ++input) donors.push_back({input, !leavesAlone(t, twin->schema(), i)});
  }
  const bool writes = std::any_of(donors.begin(), donors.end(), [](const auto& d) { return d.written; });
  if (written != pure.returns().size() || !writes) return;
  t.twin = twin;
  t.donors = std::move(donors);
}

}  // namespace detail

class Reuse {
 public:
  // Whether the twin of `t` may run in place of the operator: each input it writes into is used once, is freed by the order at `after`
  // (`left` words to the batch's end), is held by its value alone, and lies as the output will. `ids`: of all inputs.
  bool possible(const Template& t, const int64_t* ids, const std::vector<const at::Tensor*>& inputs, const int64_t* after, int64_t left) {
    if (left < 2 || *after >= 0 || t.donors.size() != t.outputs.size()) return false;
    const int64_t header = ~*after, size = header >> 8;
    if ((header & 0xff) != words::FREE || size > left - 1) return false;
    for (size_t k = 0; k < t.donors.size(); ++k)
      if (t.donors[k].written && (!t.outputs[k] || !alone(*inputs[t.donors[k].input], *t.outputs[k]))) return false;
    return t.donors.size() == 1 ? dies(t.donors[0].input, ids, t.input_count, after + 1, size) : allDie(t, ids, after + 1, size);
  }

 private:
  static bool alone(const at::Tensor& x, const Meta& output) {
    return x.use_count() == 1 && x.storage().use_count() == 1 && x.scalar_type() == output.dtype && liesAs(x, output) &&
        x.storage_offset() == 0 && x.is_non_overlapping_and_dense() && x.storage().nbytes() == x.nbytes() && !x._is_zerotensor();
  }

  static bool dies(int32_t donor, const int64_t* ids, int64_t inputs, const int64_t* freed, int64_t size) {
    return std::count(ids, ids + inputs, ids[donor]) == 1 && std::find(freed, freed + size, ids[donor]) != freed + size;
  }

  bool allDie(const Template& t, const int64_t* ids, const int64_t* freed, int64_t size) {
    used_.assign(ids, ids + t.input_count);
    freed_.assign(freed, freed + size);
    std::sort(used_.begin(), used_.end());
    std::sort(freed_.begin(), freed_.end());
    return std::all_of(t.donors.begin(), t.donors.end(), [&](const auto& donor) {
      const int64_t id = ids[donor.input];
      const auto [first, last] = std::equal_range(used_.begin(), used_.end(), id);
      return !donor.written || (last - first == 1 && std::binary_search(freed_.begin(), freed_.end(), id));
    });
  }

  std::vector<int64_t> used_, freed_;  // sorted; scratch
};

}  // namespace gt::worker

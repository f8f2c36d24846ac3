// The signal of what a thread does now. Outside backward: the innermost context. In backward: the one under which the autograd node was
// made, told by the node's thread and sequence number; contexts note the sequence number at which they begin and end.
#include "signal.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gt {
namespace {

struct Boundary {
  uint64_t sequence;  // nodes from this number on were made under `signal`
  int64_t signal;
};
constexpr size_t kMost = 1 << 18;  // boundaries kept a thread: 100 contexts a step, 2,600 steps of graph kept alive

std::mutex guard;
std::unordered_map<uint64_t, std::vector<Boundary>> threads;

struct Now {
  int64_t signal = 0;               // innermost context
  const void* enteredUnder = nullptr;  // the node that was running when it was entered (a checkpoint's recompute)
  const void* node = nullptr;       // last node asked about ...
  uint64_t sequence = 0;
  int64_t nodeSignal = 0;           // ... and its signal
  int64_t marked = 0;               // the signal of the last boundary
};
thread_local Now now;

void mark(int64_t signal) {
  if (now.marked == signal) return;
  now.marked = signal;
  std::lock_guard lock(guard);
  auto& log = threads[at::RecordFunction::currentThreadId()];
  const auto sequence = at::sequence_number::peek();
  if (!log.empty() && log.back().sequence == sequence) log.back().signal = signal;
  else log.push_back({sequence, signal});
  if (log.size() > kMost) log.erase(log.begin(), log.begin() + kMost / 2);
}

int64_t signalOf(uint64_t thread, uint64_t sequence) {
  std::lock_guard lock(guard);
  auto found = threads.find(thread);
  if (found == threads.end()) return 0;
  const auto& log = found->second;
  auto after = std::upper_bound(log.begin(), log.end(), sequence, [](uint64_t s, const Boundary& b) { return s < b.sequence; });
  return after == log.begin() ? 0 : std::prev(after)->signal;
}

}  // namespace

int64_t enterSignal(int64_t signal) {
  const auto before = now.signal;
  const auto node = torch::autograd::get_current_node();
  now.signal = signal;
  now.enteredUnder = node.get();
  now.node = nullptr;
  mark(signal);
  return before;
}

int64_t currentSignal() {
  const auto node = torch::autograd::get_current_node();
  if (C10_LIKELY(!node)) {
    now.node = nullptr;
    if (now.marked != now.signal) mark(now.signal);
    return now.signal;
  }
  if (now.enteredUnder == node.get() && now.signal) return now.signal;
  const auto sequence = node->sequence_nr();
  if (now.node == node.get() && now.sequence == sequence) return now.nodeSignal;
  // AccumulateGrad has no number of its own: it goes with the node before it.
  auto signal = sequence == UINT64_MAX ? now.nodeSignal : signalOf(node->thread_id(), sequence);
  if (!signal) signal = now.signal;
  now.node = node.get(), now.sequence = sequence, now.nodeSignal = signal;
  mark(signal);  // nodes made here (create_graph) inherit it
  return signal;
}

}  // namespace gt

// One session on a worker: its values, templates, flags and signals, and the loop that runs its words.
//
// Everything that runs here came from a client: each word is checked before it is used, and whatever is wrong ends as a Failure of the
// values concerned or of the session, never as undefined behaviour. Knows nothing of Python and needs no GIL.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allowance.hpp"
#include "arguments.hpp"
#include "definition.hpp"
#include "failure.hpp"
#include "layout.hpp"
#include "reuse.hpp"
#include "values.hpp"

namespace gt::worker {

// What all sessions of a worker share.
struct Shared {
  Shared(std::string worker_, c10::Device device_, int64_t limit_) : worker(std::move(worker_)), device(device_), limit(limit_) {}
  std::string worker;
  c10::Device device;
  int64_t limit;  // bytes of values on this worker; 0 = the allocator decides
  Counter bytes, instructions;
  int64_t applied_flags = -1;
  std::function<std::string(const std::string&)> others;  // "s2 1.0 GiB, s3 2.0 MiB": who else holds memory
};

// Runs below autograd: values have no history here.
struct Below {
  c10::AutoGradMode grad{false};
  at::AutoDispatchBelowADInplaceOrView guard;
};

inline uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Where a run stands; a run that waits for a value goes on from here.
struct Cursor {
  int64_t position = 0;  // in words
  int64_t next = 0;      // id of the next output
  int64_t waits_for = -1;
};

// What the last instruction made, for a verdict.
struct Verdict {
  FailurePtr failure;
  std::vector<std::optional<Meta>> outputs;
};

class Session {
 public:
  Session(std::string name, int64_t cap, Shared& shared) : name_(std::move(name)), cap_(cap), shared_(shared), values(shared.bytes) {}

  // ---- templates and signals ----------------------------------------------------------------------------------------------------
  void define(int64_t id, std::unique_ptr<Template> t) {
    detail::findTwin(*t);
    if (!t->twin) t->outputs.clear();
    if (static_cast<size_t>(id) >= templates_.size()) templates_.resize(std::max<size_t>(id + 1, templates_.size() * 2));
    templates_[id] = std::move(t);
  }
  void signal(int64_t id, std::string text) {
    if (signals_.size() < kMaxSignals) signals_[id] = std::move(text);
  }

  // ---- failures -----------------------------------------------------------------------------------------------------------------
  // A client that sends nonsense loses what it asked for from here on; nobody else notices.
  FailurePtr breakSession(const std::string& why) {
    auto failure = protocolFailure(why);
    if (!broken_) broken_ = failure;
    remember(failure);
    return failure;
  }

  FailurePtr unknown(int64_t id) {
    if (broken_) return broken_;
    auto failure = protocolFailure("session " + name_ + " has no value " + std::to_string(id) + " on this worker (never made, or freed)");
    remember(failure);
    return failure;
  }

  // The first failure that nobody was told of, or nothing.
  FailurePtr unreported() {
    while (!failures_.empty()) {
      auto failure = std::move(failures_.front());
      failures_.pop_front();
      if (!failure->reported) {
        failure->reported = true;
        return failure;
      }
    }
    return nullptr;
  }

  bool fits(int64_t bytes) const { return fitsCap(bytes) && (shared_.limit <= 0 || shared_.bytes.get() + bytes <= shared_.limit); }

  // Why `bytes` more don't fit.
  FailurePtr overMemory(int64_t bytes, const std::string& what) const {
    const bool mine = !fitsCap(bytes);
    auto failure = std::make_shared<Failure>();
    failure->kind = kinds::MEMORY;
    failure->type = "OutOfMemoryError";
    std::string text = "session " + name_ + " asked for " + bytesText(bytes) + " (" + what + "); it holds " + bytesText(values.bytes());
    if (cap_ > 0) text += " of its " + bytesText(cap_) + " cap";
    if (!mine) text += ", worker " + shared_.worker + " has " + bytesText(shared_.bytes.get()) + " of its " + bytesText(shared_.limit) + " in use";
    const std::string others = shared_.others ? shared_.others(name_) : "";
    failure->message = text + (others.empty() ? "; nobody else holds anything here" : "; others hold: " + others);
    failure->worker = shared_.worker;
    return failure;
  }

  void remember(FailurePtr failure) {
    if (failures_.size() < kMaxFailures) failures_.push_back(std::move(failure));
  }

  // ---- running ------------------------------------------------------------------------------------------------------------------
  // Runs `count` words from the cursor on, until the end or until an input is still under way (cursor.waits_for).
  void run(const int64_t* words, int64_t count, Cursor& cursor, bool want_verdict) {
    Below below;
    want_verdict_ = want_verdict;
    if (want_verdict && cursor.position == 0) verdict_ = Verdict{};
    apply(flags_);
    cursor.waits_for = -1;
    while (cursor.position < count) {
      const int64_t word = words[cursor.position];
      const bool going = word < 0 ? obey(words, count, cursor) : step(words, count, cursor);
      if (!going) return;
    }
  }

  Verdict takeVerdict() { return std::move(verdict_); }

  std::vector<int64_t> takeTrace() { return std::exchange(trace_, {}); }

  int64_t instructions() const { return instructions_.get(); }
  const std::string& name() const { return name_; }
  int64_t cap() const { return cap_; }

 private:
  static constexpr size_t kMaxSignals = 1 << 16;
  static constexpr size_t kMaxFailures = 256;      // untold failures that are kept for Sync
  static constexpr size_t kMaxTrace = 3 << 19;     // words of trace between two Syncs: 12 MiB fit a message
  static constexpr int64_t kMaxId = int64_t(1) << 62;

  std::string name_;
  int64_t cap_;
  Shared& shared_;

 public:
  Values values;

 private:
  // Bytes that may still be allocated; on other devices than the CPU their allocators decide.
  int64_t left() const {
    int64_t most = std::numeric_limits<int64_t>::max();
    if (cap_ > 0) most = cap_ - values.bytes();
    if (shared_.limit > 0) most = std::min(most, shared_.limit - shared_.bytes.get());
    return most;
  }

  bool fitsCap(int64_t bytes) const { return cap_ <= 0 || values.bytes() + bytes <= cap_; }

  FailurePtr protocolFailure(const std::string& why) const {
    auto failure = std::make_shared<Failure>();
    failure->kind = kinds::PROTOCOL;
    failure->type = "RuntimeError";
    failure->message = why;
    failure->worker = shared_.worker;
    return failure;
  }

  bool stop(int64_t count, Cursor& cursor, const std::string& why) {
    auto failure = breakSession(why);
    if (want_verdict_) verdict_ = Verdict{failure, {}};
    cursor.position = count;
    return false;
  }

  bool obey(const int64_t* words, int64_t count, Cursor& cursor) {
    const int64_t header = ~words[cursor.position];
    const int64_t code = header & 0xff, size = header >> 8;
    const int64_t left = count - cursor.position - 1;
    if (size > left)
      return stop(count, cursor, "an order for " + std::to_string(size) + " words, but the batch has " + std::to_string(left) + " more");
    const int64_t* arguments = words + cursor.position + 1;
    cursor.position += 1 + size;
    if (code == words::FREE) {
      for (int64_t i = 0; i < size; ++i)
        if (arguments[i] >= 0) values.erase(arguments[i]);
      return true;
    }
    if (size != 1 || code < words::FREE || code > words::BASE)
      return stop(count, cursor, "an order with code " + std::to_string(code) + " and " + std::to_string(size) + " words");
    if (code == words::SIGNAL) signal_ = arguments[0];
    if (code == words::FLAGS) apply(flags_ = arguments[0]);
    if (code == words::BASE) {
      if (arguments[0] < 0 || arguments[0] > kMaxId) return stop(count, cursor, "an impossible base " + std::to_string(arguments[0]));
      cursor.next = arguments[0];
    }
    return true;
  }

  bool step(const int64_t* words, int64_t count, Cursor& cursor) {
    const int64_t* at = words + cursor.position;
    const size_t id = at[0] & 0xffffffff;
    if (id >= templates_.size() || !templates_[id]) return stop(count, cursor, "an instruction of the unknown template " + std::to_string(id));
    Template& t = *templates_[id];
    const int64_t size = t.words();
    if (size > count - cursor.position)
      return stop(count, cursor, "an instruction of " + t.name + " is cut off: it needs " + std::to_string(size) + " words");
    if (cursor.next < 0 || cursor.next > kMaxId) return stop(count, cursor, "an impossible output id");
    inputs_.clear();
    FailurePtr failure;
    for (int64_t i = 1; i <= t.input_count; ++i) {
      Value* value = at[i] < 0 ? nullptr : values.find(at[i]);
      if (value == nullptr) {
        if (!failure) failure = unknown(at[i]);
      } else if (value->state == State::PENDING) {
        cursor.waits_for = at[i];
        return false;
      } else if (value->state == State::POISON) {
        if (!failure) failure = value->failure;
      } else {
        inputs_.push_back(&value->tensor);
      }
    }
    const int64_t first = cursor.next;
    literals_ = at + 1 + t.input_count;
    site_ = at[0] >> 32;
    if (failure) {
      fail(t, failure, cursor);
    } else {
      // a first call is answered with what the operator itself gives
      const bool reuses = t.twin && !want_verdict_ && !t.refusal && reuse_.possible(t, at + 1, inputs_, at + size, count - cursor.position - size);
      execute(t, cursor, reuses);
    }
    cursor.position += size;
    instructions_.add(1);
    shared_.instructions.add(1);
    if ((flags_ & words::TRACE) && trace_.size() + 3 <= kMaxTrace) trace_.insert(trace_.end(), {static_cast<int64_t>(id), first, ran_ ? 1 : 0});
    return true;
  }

  void execute(Template& t, Cursor& cursor, bool reuses) {
    if (t.refusal) return fail(t, located(std::make_shared<Failure>(*t.refusal), t), cursor);
    if (C10_UNLIKELY(!fits(t.output_bytes)) && t.output_bytes > 0 && !reuses)
      return fail(t, located(overMemory(t.output_bytes, t.name + " of " + inputShapes()), t), cursor);
    Allowance allowance(left());
    try {
      if (t.flags & words::RANDOM) seed(t);
      if (reuses) overwrite(t);
      else call(t);
      collect(t, cursor);
    } catch (...) {
      auto failure = std::make_shared<Failure>();
      describeCurrentException(*failure);
      if (Allowance::refused() > 0) failure = overMemory(Allowance::refused(), t.name + " of " + inputShapes());
      fail(t, located(failure, t), cursor);
    }
    stack_.clear();
  }

  // ---- the call -----------------------------------------------------------------------------------------------------------------
  void call(Template& t) {
    if (C10_UNLIKELY(want_verdict_)) relay(t);  // what is answered is true of the client's layouts, not of those that values happen to have here
    if (t.identity) {
      stack_.clear();
      stack_.emplace_back(*inputs_[0]);
      return;
    }
    const bool laid = !t.layout_matters || t.inputs.empty() || !t.inputs[0] || liesAs(*inputs_[0], *t.inputs[0]);
    if (laid && !t.view) {
      try {
        fill(t);
        t.op->callBoxed(stack_);
        if (C10_UNLIKELY(t.blank != Template::Blank::NO)) clear(t);
        return;
      } catch (const c10::Error&) {
        if (!relay(t)) throw;  // it failed for another reason than a layout that isn't the client's
      }
      fill(t);
      t.op->callBoxed(stack_);
      if (t.blank != Template::Blank::NO) clear(t);
      return;
    }
    if (laid && !t.prefer_copy) {
      try {
        fill(t);
        return t.view->callBoxed(stack_);
      } catch (const c10::Error&) {
      }
    }
    if (!laid) relay(t);
    try {
      fill(t);
      t.op->callBoxed(stack_);
    } catch (const c10::Error&) {
      if (!relay(t)) throw;
      fill(t);
      t.op->callBoxed(stack_);
    }
    if (laid) t.prefer_copy = true;  // the copying form could do what the view couldn't: don't throw each time
  }

  // The in-place twin, on inputs that end here: they are the outputs.
  void overwrite(Template& t) {
    fill(t);
    t.twin->callBoxed(stack_);
    stack_.clear();
    for (const auto& donor : t.donors) stack_.emplace_back(*inputs_[donor.input]);
  }

  // Zeros where the kernel gave memory as it found it, unless PyTorch itself fills it.
  void clear(const Template& t) {
    const auto& context = at::globalContext();
    if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) return;
    const at::Tensor& made = stack_.back().toTensor();
    if (t.blank == Template::Blank::ALL) made.zero_();
    else if (made.numel() > inputs_[0]->numel() && made.is_contiguous()) made.view(-1).slice(0, inputs_[0]->numel()).zero_();
  }

  // Brings inputs that lie differently here than the client believes (views alias on a worker) to the client's layout. False if
  // nothing differs.
  bool relay(Template& t) {
    bool changed = false;
    relaid_.resize(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (i >= t.inputs.size() || !t.inputs[i] || inputs_[i]->sizes() != c10::IntArrayRef(t.inputs[i]->sizes)) continue;
      const Meta& meta = *t.inputs[i];
      if (liesAs(*inputs_[i], meta)) continue;
      relaid_[i] = layOut(*inputs_[i], meta.strides, t.layout_matters ? meta.offset : 0, inputs_[i]->device());
      inputs_[i] = &relaid_[i];
      changed = true;
    }
    return changed;
  }

  void fill(Template& t) { arguments_.fill(t, inputs_, literals_, shared_.device, stack_); }

  // One (seed, offset) gives the same numbers always, whoever ran before: every random instruction starts the generator anew.
  void seed(Template& t) {
    const auto words = literals_ + t.literal_words;
    const uint64_t mixed = splitmix(splitmix(static_cast<uint64_t>(words[0])) ^ static_cast<uint64_t>(words[1]));
    auto generator = at::globalContext().defaultGenerator(shared_.device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(mixed);
    if (!shared_.device.is_cpu()) generator.set_offset(0);
  }

  // ---- results ------------------------------------------------------------------------------------------------------------------
  void collect(Template& t, Cursor& cursor) {
    results_.clear();
    for (auto& value : stack_) {
      if (value.isTensor()) {
        results_.push_back(std::move(value).toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& item : value.toTensorVector()) results_.push_back(item);
      } else if (value.isNone()) {
        results_.emplace_back();
      }
    }
    stack_.clear();
    TORCH_CHECK(t.learns || static_cast<int64_t>(results_.size()) == t.output_ids, t.name, " gave ", results_.size(), " tensors where ",
                t.output_ids, " were expected");
    for (auto& result : results_)
      if (result.defined()) check(result, t);
    if (C10_UNLIKELY(t.learns || (t.flags & words::DYNAMIC))) {
      const int64_t bytes = newBytes(t);
      if (bytes > 0 && !fits(bytes)) {
        results_.clear();
        return fail(t, located(overMemory(bytes, t.name + " of " + inputShapes()), t), cursor);
      }
      if (t.learns) {
        t.output_ids = static_cast<int64_t>(results_.size());
        t.output_bytes = t.flags & words::DYNAMIC ? 0 : bytes;
        if (t.twin)
          for (const auto& result : results_) t.outputs.push_back(result.defined() ? std::optional<Meta>(metaOf(result)) : std::nullopt);
        t.learns = false;
      }
    }
    if (want_verdict_) {
      verdict_ = Verdict{};
      for (const auto& result : results_)
        verdict_.outputs.push_back(result.defined() ? std::optional<Meta>(metaOf(result)) : std::nullopt);
    }
    for (auto& result : results_) {
      if (result.defined()) values.store(cursor.next, std::move(result));
      cursor.next += 1;
    }
    results_.clear();
    ran_ = true;
  }

  // Bytes of the results' storages that no input has, each once.
  int64_t newBytes(const Template& t) const {
    if (t.identity) return 0;
    std::vector<const void*> seen;
    for (const auto* input : inputs_) seen.push_back(input->storage().unsafeGetStorageImpl());
    int64_t bytes = 0;
    for (const auto& result : results_) {
      if (!result.defined()) continue;
      const void* storage = result.storage().unsafeGetStorageImpl();
      if (std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
      seen.push_back(storage);
      bytes += static_cast<int64_t>(result.storage().nbytes());
    }
    return bytes;
  }

  // Values are dense tensors on the worker's device without lazy bits.
  void check(at::Tensor& result, const Template& t) {
    if (C10_UNLIKELY(result.layout() != c10::kStrided || !result.has_storage() || result.is_nested()))
      TORCH_CHECK_NOT_IMPLEMENTED(false, t.name, " gave a tensor with layout ", result.layout(), "; values on a worker are dense");
    if (C10_UNLIKELY(!plainDtype(static_cast<int64_t>(result.scalar_type()))))
      TORCH_CHECK_NOT_IMPLEMENTED(false, t.name, " gave a tensor of ", result.scalar_type(), ", which values on a worker can't have");
    if (C10_UNLIKELY(result.is_conj())) result = result.resolve_conj();
    if (C10_UNLIKELY(result.is_neg())) result = result.resolve_neg();
    if (C10_UNLIKELY(result.device() != shared_.device)) result = result.to(shared_.device);
    if (C10_UNLIKELY(result.unsafeGetTensorImpl()->is_wrapped_number())) result = result.clone();
  }

  void fail(const Template& t, const FailurePtr& failure, Cursor& cursor) {
    if (want_verdict_) verdict_ = Verdict{failure, {}};
    for (int64_t i = 0; i < t.output_ids; ++i) values.poison(cursor.next++, failure);
    ran_ = false;
  }

  FailurePtr located(FailurePtr failure, const Template& t) {
    failure->op = t.name;
    failure->shapes = inputShapes();
    failure->worker = shared_.worker;
    failure->site = site_;
    if (auto it = signals_.find(signal_); it != signals_.end()) failure->signal = it->second;
    remember(failure);
    return failure;
  }

  std::string inputShapes() const {
    constexpr size_t shown = 8;
    std::string text;
    for (size_t i = 0; i < std::min(inputs_.size(), shown); ++i)
      text += (i ? " x " : "") + shapeText(inputs_[i]->scalar_type(), inputs_[i]->sizes());
    if (inputs_.size() > shown) text += " and " + std::to_string(inputs_.size() - shown) + " more";
    return text.empty() ? "no inputs" : text;
  }

  // ---- flags --------------------------------------------------------------------------------------------------------------------
  void apply(int64_t flags) {
    flags &= ~words::TRACE;
    if (flags == shared_.applied_flags) return;
    shared_.applied_flags = flags;
    const auto dtype = static_cast<c10::ScalarType>(flags & 0xff);
    if (plainDtype(flags & 0xff) && c10::isFloatingType(dtype)) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(flags & words::DETERMINISTIC, flags & words::DETERMINISTIC_WARN_ONLY);
    context.setDeterministicFillUninitializedMemory(flags & words::DETERMINISTIC_FILL);
    context.setFloat32MatmulPrecision(flags & words::MATMUL_MEDIUM ? "medium" : flags & words::MATMUL_HIGH ? "high" : "highest");
    context.setAllowTF32CuDNN(flags & words::TF32_CUDNN);
    if (!(flags & (words::MATMUL_MEDIUM | words::MATMUL_HIGH))) context.setAllowTF32CuBLAS(flags & words::TF32_CUBLAS);
    at::Context::setFlushDenormal(flags & words::FLUSH_DENORMAL);
  }

  static constexpr int64_t kTorchsFlags = static_cast<int64_t>(c10::ScalarType::Float) | words::TF32_CUDNN | words::DETERMINISTIC_FILL;

  std::vector<std::unique_ptr<Template>> templates_;
  std::unordered_map<int64_t, std::string> signals_;
  int64_t flags_ = kTorchsFlags, signal_ = 0;
  FailurePtr broken_;
  std::deque<FailurePtr> failures_;
  std::vector<int64_t> trace_;
  Counter instructions_;
  Verdict verdict_;

  // scratch of the instruction that runs
  std::vector<const at::Tensor*> inputs_;
  std::vector<at::Tensor> relaid_, results_;
  std::vector<c10::IValue> stack_;
  const int64_t* literals_ = nullptr;
  Arguments arguments_;
  Reuse reuse_;
  int64_t site_ = 0;
  bool want_verdict_ = false, ran_ = false;
};

}  // namespace gt::worker

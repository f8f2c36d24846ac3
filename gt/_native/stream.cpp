// Ids, interned metas, and the batch under way.
#include "stream.hpp"

#include <pthread.h>

#include "gt_runtime/protocol/words.hpp"

namespace gt {

bool forked = false;
std::atomic<bool> ending = false;

Stream& Stream::the() {
  static auto* stream = [] {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return new Stream();
  }();
  return *stream;
}

Mux::Mux(int64_t id_, const Meta* meta_, int64_t offset, uint32_t life_)
    : c10::TensorImpl(c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ADInplaceOrView,
                                           c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::AutocastPrivateUse1}),
                      c10::scalarTypeToTypeMeta(meta_->dtype), c10::Device(kMux, 0)),
      id(id_), meta(meta_), life(life_) {
  set_sizes_and_strides(meta->sizes, meta->strides, offset);
}

Mux::~Mux() {
  if (forked) return;  // the value belongs to the parent
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  if (life == s.life) s.dead.push_back(id);
}

const Meta* Stream::meta(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  std::string key;
  key.reserve(1 + 16 * sizes.size());
  key.push_back(static_cast<char>(dtype));
  key.append(reinterpret_cast<const char*>(sizes.data()), 8 * sizes.size());
  key.append(reinterpret_cast<const char*>(strides.data()), 8 * strides.size());
  auto [it, fresh] = metaNumbers.try_emplace(std::move(key), nullptr);
  if (fresh) {
    metas.push_back(std::make_unique<Meta>(Meta{sizes.vec(), strides.vec(), dtype, static_cast<int32_t>(metas.size())}));
    it->second = metas.back().get();
  }
  return it->second;
}

void Stream::reap() {
  if (dead.empty()) return;
  batch.words.push_back(words::order(words::FREE, static_cast<int64_t>(dead.size())));
  batch.words.insert(batch.words.end(), dead.begin(), dead.end());
  dead.clear();
}

void Stream::cut(int64_t verdict) {
  reap();
  if (batch.words.empty() && batch.definitions.empty() && !verdict) return;
  batch.verdict = verdict;
  batch.seq = nextSeq++;
  lastSignal = -1, lastFlags = -1;
  if (batch.outputs == 0) batch.base = nextId;
  outgoing.push_back(std::move(batch));
  batch = Outgoing();
  batch.words.reserve(limit + 64);
  cuts++;
}

void Stream::end() {
  life++;
  nextSeq = 1;
  for (auto& [key, t] : templates) retired.push_back(std::move(t));
  templates.clear();
  signals.clear();
  batch = Outgoing();
  outgoing.clear();
  dead.clear();
  lastSignal = -1, lastFlags = -1;
}

}  // namespace gt

// The instruction stream of this process and the handles of its values: what capture writes and Python sends.
//
// One mutex guards the ids, the templates and the batch under way. Nothing here takes the GIL; whoever must call Python gives the
// mutex back first (capture.cpp), so the two locks are never held in the opposite order.
#pragma once
#include <ATen/ATen.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace gt {

constexpr auto kMux = c10::DeviceType::PrivateUse1;

// Shape, strides and dtype of a value, interned: equal metas have equal numbers, so a template's key holds 4 bytes an input.
struct Meta {
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype;
  int32_t number;
};

// A value's handle: a tensor without storage that knows the value's id. Its death is the value's.
struct Mux final : c10::TensorImpl {
  Mux(int64_t id, const Meta* meta, int64_t offset, uint32_t life);
  ~Mux() override;
  const int64_t id;
  const Meta* const meta;
  const uint32_t life;  // of the session the value belongs to
};

// What a template's first call taught: one entry a returned tensor (lists flattened), null for an undefined one.
struct Output {
  const Meta* meta;
  int64_t offset;
};
struct Template {
  int32_t id;
  bool dynamic;
  std::vector<Output> outputs;
  std::vector<int32_t> lists;  // one entry a return: -1 a tensor, else the length of the list
};

struct Signal {
  int64_t id;
  std::string name;
};

// One thing to send, in order: a batch of words, or an upload.
struct Outgoing {
  std::vector<int64_t> words;
  int64_t seq = 0, base = 0, outputs = 0, instructions = 0, verdict = 0;
  std::vector<std::string> definitions;  // MessagePack, one a template
  std::vector<Signal> signals;
  at::Tensor data;  // an upload: contiguous CPU tensor
  int64_t id = 0;
  const Meta* meta = nullptr;
};

// One line of the tape: what was recorded, before anyone ran it.
struct TapeEntry {
  std::string name;
  int32_t tmpl;
  int64_t output, outputs;
  int32_t site;
  int64_t signal;
  std::string shapes;
};

struct Stream {
  std::mutex mutex;
  std::condition_variable begun;  // the batch under way got its first word (someone may wait for the window)
  bool waiting = false;                // someone does

  uint32_t life = 1;  // rises when a session ends: handles of older lives are refused
  int64_t nextSeq = 1, nextId = 1, nextRequest = 1, nextSignal = 1, nextTemplate = 0;
  int64_t issued = 0, uploads = 0, cuts = 0;
  // Words after which a batch leaves. The first after a pause is small, so that an idle worker begins soon; each full one doubles the limit,
  // so that a long stream costs few messages.
  static constexpr size_t kFirstWords = 512, kMostWords = 4096;
  size_t limit = kFirstWords;

  Outgoing batch;
  std::deque<Outgoing> outgoing;
  std::vector<int64_t> dead;
  int64_t lastSignal = -1, lastFlags = -1;  // said in this batch; a batch stands for itself

  std::vector<std::unique_ptr<Meta>> metas;
  std::unordered_map<std::string, const Meta*> metaNumbers;
  std::unordered_map<std::string, std::unique_ptr<Template>> templates;
  std::vector<std::unique_ptr<Template>> retired;  // of ended sessions: another thread may still read one
  std::unordered_map<std::string, int64_t> signals;

  int64_t slowFlags = 0;  // the numeric flags that are dear to ask for: refreshed when they are set (gt/patches.py)

  bool tape = false;
  std::vector<TapeEntry> tapeEntries;

  static Stream& the();  // never destroyed: handles may die after everything else

  // All of these want the mutex held.
  const Meta* meta(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
  bool pending() const { return !batch.words.empty() || !dead.empty(); }
  void reap();               // dead ids become a FREE order
  void cut(int64_t verdict);  // the batch under way becomes the next thing to send
  void end();                // a session is over: templates and what wasn't sent are gone
};

// The program ends: a daemon thread that still uses mux sleeps from here on. Left running, it would be unwound inside PyTorch, which aborts
// the process (as with plain CPU tensors).
extern std::atomic<bool> ending;
void parkAtEnd();  // module.cpp

extern bool forked;  // this process is a forked child: the session isn't its own

// The Python side's callbacks (module.cpp). None may be called with the mutex held; each takes the GIL and turns a Python exception into
// a C++ one that torch hands back unchanged.
void sendOutgoing();
std::vector<std::unique_ptr<Output>> awaitVerdict(int64_t request, int64_t site);
at::Tensor fetchValue(int64_t id, const Meta* meta);
void synchronizeSession();
void lockWithoutGil(std::recursive_mutex& mutex);  // who holds it may be waiting for the GIL: never wait for it with the GIL held
[[noreturn]] void notSupported(const std::string& what, const std::string& why, const std::string& instead);

// The number of the user's source line that is running in this thread (site.cpp); 0 = unknown.
int32_t currentSite();
bool inPython();  // this thread runs Python code: it isn't one of autograd's

// The signal of what this thread does now (module.cpp): a backward operation has its forward operation's.
int64_t currentSignal();

// Set while an in-place kernel of functionalization runs: its out-of-place operator must give self's shape (functional.cpp).
struct Inplace {
  const c10::IntArrayRef* sizes = nullptr;  // null: any (out= resizes)
  const c10::IntArrayRef* strides = nullptr;  // of self, which keeps them
  const std::string* name = nullptr;        // null: nothing is expected
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};
extern thread_local Inplace inplace;

// Set while a normal tensor is written to: in inference mode, values made now are normal ones all the same.
extern thread_local bool normalValues;

at::Tensor wrapped(const at::Tensor& inner);  // a handle as users see it
bool functionalizing();
at::Tensor fetchTensor(const at::Tensor& inner);
at::Tensor uploadTensor(const at::Tensor& cpu);  // returns the handle
int64_t registerCapture();                       // kernels on PrivateUse1; their number
void registerFunctional();                       // what functionalization must do differently for mux
void registerDevice();                           // guard, hooks, generator
void registerAutocast();                         // the cast lists
void registerConjugate();                        // views with the conjugate or negative bit
void registerComposed();                         // operators written as others, and answers that aren't tensors
void registerRefused();                          // sparse, quantized, nested
void registerStorage();                          // tensors made of storages
std::pair<uint64_t, uint64_t> drawSeed(const std::optional<at::Generator>& generator);
void acknowledge(int64_t instructions);

}  // namespace gt

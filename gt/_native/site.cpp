// Which line of the user's program is running: the innermost Python frame outside torch and GT, as a small number.
//
// Looked at on every instruction, so it reads the interpreter's frames directly, without the GIL: they belong to this thread, which
// stands in C. A pair (code, instruction) seen before costs one look-up in a thread-local table; a new one takes the GIL once. Code
// objects that were seen are kept alive: an address never means two of them.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030e0000
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#define GT_FRAMES 1
#endif

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "site.hpp"

namespace gt {
namespace {

constexpr int32_t kInternal = -1;      // a frame of torch's or GT's: look further out
constexpr size_t kMost = 1 << 17;      // source lines that get a number; a program that makes code without end stays bounded
std::vector<std::string> internal;     // path prefixes whose frames are not the user's
std::vector<std::pair<std::string, int>> sites{{"", 0}};
std::unordered_map<std::string, int32_t> numbers;
std::mutex guard;  // of the three above

struct Entry {
  const void* code = nullptr;
  int offset = 0;
  int32_t site = 0;
};
thread_local std::array<Entry, 1024> cache;

int32_t number(const std::string& file, int line) {
  std::lock_guard lock(guard);
  for (const auto& prefix : internal)
    if (file.compare(0, prefix.size(), prefix) == 0) return kInternal;
  auto [it, fresh] = numbers.try_emplace(file + ":" + std::to_string(line), static_cast<int32_t>(sites.size()));
  if (fresh) {
    if (sites.size() >= kMost) {
      numbers.erase(it);
      return 0;
    }
    sites.emplace_back(file, line);
  }
  return it->second;
}

#ifdef GT_FRAMES
PyCodeObject* codeOf(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030d0000
  return _PyFrame_GetCode(frame);
#else
  return frame->f_code;
#endif
}

int offsetOf(_PyInterpreterFrame* frame) { return _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT)); }

_PyInterpreterFrame* innermost(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030d0000
  return state->current_frame;
#else
  return state->cframe->current_frame;
#endif
}

int32_t learn(PyCodeObject* code, int offset) {
  auto gil = PyGILState_Ensure();
  Py_INCREF(code);  // for ever: the cache is keyed by its address
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  auto site = number(file ? file : "?", PyCode_Addr2Line(code, offset));
  PyGILState_Release(gil);
  return site;
}
#endif

}  // namespace

int32_t currentSite() {
#ifdef GT_FRAMES
  auto* state = PyGILState_GetThisThreadState();
  if (!state) return 0;
  for (auto* frame = innermost(state); frame; frame = frame->previous) {
    auto* code = codeOf(frame);
    const int offset = offsetOf(frame);
    if (!code || offset < 0) continue;
    auto& entry = cache[((reinterpret_cast<uintptr_t>(code) >> 5) ^ static_cast<size_t>(offset) * 31) & 1023];
    if (entry.code != code || entry.offset != offset) entry = {code, offset, learn(code, offset)};
    if (entry.site != kInternal) return entry.site;
  }
#endif
  return 0;
}

bool inPython() {
  auto* state = PyGILState_GetThisThreadState();
#ifdef GT_FRAMES
  return state && innermost(state);
#else
  return state;
#endif
}

void setInternal(std::vector<std::string> prefixes) {
  std::lock_guard lock(guard);
  internal = std::move(prefixes);
}

std::pair<std::string, int> siteOf(int32_t site) {
  std::lock_guard lock(guard);
  return site > 0 && static_cast<size_t>(site) < sites.size() ? sites[site] : std::pair<std::string, int>{"", 0};
}

}  // namespace gt

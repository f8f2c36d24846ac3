// The words of a batch for C++: the same codes as words.py (a test compares them), and the hash of ATen's operator schemas that a
// handshake compares. Included by the client's capture and by the worker's executor; knows neither.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace gt::words {

enum Order : int64_t { FREE = 1, SIGNAL = 2, FLAGS = 3, BASE = 4 };

enum NumericFlag : int64_t {
  DETERMINISTIC = 1 << 8,
  DETERMINISTIC_WARN_ONLY = 1 << 9,
  DETERMINISTIC_FILL = 1 << 10,
  TF32_CUDNN = 1 << 11,
  MATMUL_HIGH = 1 << 12,
  MATMUL_MEDIUM = 1 << 13,
  TRACE = 1 << 16,
  FLUSH_DENORMAL = 1 << 17,
  TF32_CUBLAS = 1 << 18,
};

enum TemplateFlag : int64_t { RANDOM = 1, DYNAMIC = 2 };

constexpr int64_t order(Order code, int64_t count) { return ~(static_cast<int64_t>(code) | count << 8); }
constexpr int64_t instruction(int64_t tmpl, int64_t site) { return tmpl | site << 32; }

// FNV-1a over the sorted schemas of all aten operators: two builds with the same hash agree on every operator's arguments.
inline std::string schemaHash() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<std::string> schemas;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    if (auto op = dispatcher.findSchema(name)) {
      std::ostringstream text;
      text << op->schema();
      schemas.push_back(text.str());
    }
  }
  std::sort(schemas.begin(), schemas.end());
  uint64_t hash = 14695981039346656037ull;
  for (const auto& s : schemas)
    for (unsigned char c : s) hash = (hash ^ c) * 1099511628211ull;
  std::ostringstream out;
  out << std::hex << hash;
  return out.str();
}

}  // namespace gt::words

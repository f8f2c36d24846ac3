// Writes MessagePack: only what a template's definition needs.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

namespace gt::msgpack {

class Writer {
 public:
  void nil() { byte(0xc0); }
  void boolean(bool b) { byte(b ? 0xc3 : 0xc2); }
  void integer(int64_t v) { byte(0xd3), big(static_cast<uint64_t>(v), 8); }
  void real(double v) {
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    byte(0xcb), big(bits, 8);
  }
  void string(const std::string& s) { byte(0xdb), big(s.size(), 4), out_ += s; }
  void array(size_t n) { byte(0xdd), big(n, 4); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  void byte(unsigned b) { out_.push_back(static_cast<char>(b)); }
  void big(uint64_t v, int bytes) {
    for (int i = bytes - 1; i >= 0; i--) byte(static_cast<unsigned>(v >> (8 * i)) & 0xff);
  }
};

}  // namespace gt::msgpack

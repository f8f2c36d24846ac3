// Source lines by number, for error messages and the tape.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gt {
int32_t currentSite();
void setInternal(std::vector<std::string> prefixes);
std::pair<std::string, int> siteOf(int32_t site);
}  // namespace gt

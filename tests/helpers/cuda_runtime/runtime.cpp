// A CUDA runtime of cards that are not there, put before torch's own (LD_PRELOAD): it names their architectures, and runs nothing.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

int chosen = 0;

// The cards in the environment variable CARDS, "7.5 9.0".
const std::vector<std::string>& cards() {
  static const std::vector<std::string> found = [] {
    std::istringstream names(std::getenv("CARDS"));
    std::vector<std::string> words;
    for (std::string word; names >> word;) {
      words.push_back(word);
    }
    return words;
  }();
  return found;
}

}  // namespace

extern "C" {

void choose_card(int index) {
  chosen = index;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(cards().size());
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = chosen;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  chosen = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof(*properties));
  std::sscanf(cards()[device].c_str(), "%d.%d", &properties->major, &properties->minor);
  return cudaSuccess;
}

// c10::cuda::MaybeSetDevice, which a guard calls at its end and which looks for a driver.
cudaError_t _ZN3c104cuda14MaybeSetDeviceEa(signed char device) {
  return cudaSetDevice(device);
}
}

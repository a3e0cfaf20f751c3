// Streams of the emulated device: queues of jobs, each with a thread; events; delays.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace emulator {

using Clock = std::chrono::steady_clock;
using Job = std::function<void()>;

// A stream. Its jobs run in their order on a thread that never ends, so a queue is never destroyed.
class Queue {
 public:
  explicit Queue(int64_t id);
  void push(Job job);
  // Wait until the jobs pushed so far have ended; throw the first error of any.
  void synchronize();
  bool is_idle();

 private:
  void run();
  void delay() const;

  const int64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t pushed_ = 0;
  uint64_t ended_ = 0;
  std::exception_ptr error_;
};

constexpr int64_t DEFAULT_STREAM = 0;

Queue& queue(int64_t stream);
// Return a stream other than the default one, from a pool in turn, as CUDA does.
int64_t pooled_stream();
// The current stream of this thread.
int64_t current_stream();
int64_t exchange_stream(int64_t stream);
void synchronize_all();

// Delay jobs at random by up to that time; 0: not at all.
void set_delays(uint64_t seed, double longest_s);

// An event counts how often it was recorded: a wait is for the recording that was the last one when the wait was issued.
class Event : public std::enable_shared_from_this<Event> {
 public:
  void record(int64_t stream);
  void block(int64_t stream);
  void synchronize();
  bool has_passed();
  Clock::time_point time();

 private:
  void wait_for(uint64_t recording);

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t passed_ = 0;
  Clock::time_point time_;
};

}  // namespace emulator

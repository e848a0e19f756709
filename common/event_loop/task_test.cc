#include "common/event_loop/task.h"

#include <array>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace starling {
namespace {

// Runs, moves and drops a task that captures `bytes` besides a counter.
template <size_t bytes>
void Check() {
  const auto counter = std::make_shared<int>(0);
  {
    std::array<char, bytes> more{};
    more[bytes - 1] = 7;
    Task task([counter, more] { *counter += more[bytes - 1]; });
    EXPECT_EQ(counter.use_count(), 2);
    Task moved(std::move(task));
    EXPECT_EQ(counter.use_count(), 2);
    moved();
    EXPECT_EQ(*counter, 7);
    Task dropped([counter] {});
    EXPECT_EQ(counter.use_count(), 3);
    dropped = std::move(moved);
    EXPECT_EQ(counter.use_count(), 2);
    dropped();
    EXPECT_EQ(*counter, 14);
  }
  EXPECT_EQ(counter.use_count(), 1);
}

TEST(Task, HoldsWhatIsCaptured) {
  Check<8>();
  Check<Task::kBytesInline - sizeof(std::shared_ptr<int>)>();
  Check<Task::kBytesInline>();  // on the heap
}

TEST(Task, TakesWhatCannotBeCopied) {
  auto number = std::make_unique<int>(1);
  int* const seen = number.get();
  Task task([number = std::move(number)] { ++*number; });
  task();
  EXPECT_EQ(*seen, 2);
}

}  // namespace
}  // namespace starling

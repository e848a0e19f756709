#include "worker/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "common/data_plan/epoch_order.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::CounterSource;

constexpr uint64_t kSeed = 7;

WorkRange Train(uint32_t epoch, uint64_t first, uint32_t count = 1) {
  return {.purpose = WorkPurpose::kTrain, .epoch = epoch, .first = first, .count = count};
}

WorkRange Eval(uint64_t first, uint32_t count = 1) {
  return {.purpose = WorkPurpose::kEvaluate, .epoch = 0, .first = first, .count = count};
}

std::shared_ptr<const DataSet> Counter(int64_t samples) {
  return *DataSet::Open(CounterSource(samples), {}, {});
}

// 100 training and 21 test samples in steps of 16 by 4 micro-batches.
std::unique_ptr<Loader> MakeLoader(LoaderOptions options = {}) {
  options.seed = kSeed;
  options.global_batch = 16;
  options.micro_batches = 4;
  return *Loader::Create(Counter(100), Counter(21), options);
}

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

void ExpectSampleAt(const StagedBatch& batch, int64_t i, int64_t sample) {
  EXPECT_EQ(batch.sample_ids[i], sample);
  EXPECT_EQ(batch.inputs[i], static_cast<float>(sample));
}

TEST(Loader, TokensAndTheirLabels) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i));
  const auto data =
      *DataSet::Open(data_testing::TextSource(data_testing::WriteFile("l.txt", text), 3), {}, {});
  const auto loader = *Loader::Create(data, data, {.global_batch = 8, .micro_batches = 2});
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 2)).ok());
  const BatchHandle batch = *loader->Take(Train(0, 1), Soon());
  ASSERT_EQ(batch->samples(), 4);
  EXPECT_TRUE(batch->inputs.empty());
  EXPECT_TRUE(batch->targets.empty());
  ASSERT_EQ(batch->tokens.size(), 12u);
  ASSERT_EQ(batch->labels.size(), 12u);
  EXPECT_EQ(batch->input_data(), batch->tokens.data());
  EXPECT_EQ(batch->label_data(), batch->labels.data());
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(batch->tokens[i], batch->sample_ids[i / 3] * 3 + i % 3);
    EXPECT_EQ(batch->labels[i], batch->tokens[i] + 1);
  }
  const auto other = *DataSet::Open(CounterSource(10), {}, {});
  EXPECT_FALSE(Loader::Create(data, other, {.global_batch = 8, .micro_batches = 2}).ok());
}

TEST(Loader, NumbersAsLabels) {
  DataSource source = data_testing::CsvSource(
      data_testing::WriteFile("n.csv", "a,b,c\n1,2,0.5\n3,4,1.5\n5,6,2.5\n7,8,3.5\n"));
  source.mutable_csv()->set_header(true);
  source.mutable_csv()->add_label("c");
  source.mutable_csv()->add_label("a");
  source.mutable_csv()->set_label_type(DataSource::Csv::LABEL_NUMBER);
  const auto data = *DataSet::Open(source, {}, {.classes = 2});
  EXPECT_EQ(data->format().label_type, FLOAT32);
  EXPECT_EQ(data->format().classes, 0);
  const auto loader = *Loader::Create(data, data, {.global_batch = 4, .micro_batches = 2});
  const BatchHandle batch = *loader->Take(Eval(1), Soon());
  EXPECT_EQ(std::vector<float>(batch->inputs.begin(), batch->inputs.end()),
            (std::vector<float>{6, 8}));
  EXPECT_EQ(std::vector<float>(batch->targets.begin(), batch->targets.end()),
            (std::vector<float>{2.5, 5, 3.5, 7}));
  EXPECT_TRUE(batch->labels.empty());
  EXPECT_EQ(batch->label_data(), batch->targets.data());
  // With a part of the rows, labels stay with their rows.
  source.mutable_csv()->set_part(DataSource::Csv::PART_HOLDOUT);
  source.mutable_csv()->set_holdout_fraction(0.5);
  const auto part = *DataSet::Open(source, {}, {});
  ASSERT_EQ(part->samples(), 2);
  float input = 0;
  float targets[2];
  ASSERT_TRUE(part->Gather({1}, nullptr, &input, targets).ok());
  EXPECT_EQ(targets[1] + 1, input);
}

TEST(Loader, AFileThatFailsFailsItsBatchAlone) {
  const std::string path = data_testing::WriteFile("f.txt", std::string(41, 'x'));
  const auto data = *DataSet::Open(data_testing::TextSource(path, 4), {}, {});  // 10 samples
  const auto loader = *Loader::Create(data, data, {.global_batch = 10, .micro_batches = 2});
  data_testing::WriteFile("f.txt", std::string(21, 'x'));
  ASSERT_TRUE(loader->Prefetch(Eval(0, 2)).ok());
  EXPECT_TRUE(loader->Take(Eval(0), Soon()).ok());
  const absl::Status status = loader->Take(Eval(1), Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find("f.txt: truncated"), std::string::npos) << status;
  data_testing::WriteFile("f.txt", std::string(41, 'x'));
  EXPECT_TRUE(loader->Take(Eval(1), Soon()).ok());
}

TEST(Loader, AnEpochHoldsEachSampleOnce) {
  const auto loader = MakeLoader({.threads = 2});
  ASSERT_TRUE(loader->Prefetch(Train(3, 0, 28)).ok());  // 7 steps, the last one of 4 samples
  std::set<int64_t> seen;
  for (uint64_t id = 0; id < 28; ++id) {
    const BatchHandle batch = *loader->Take(Train(3, id), Soon());
    EXPECT_EQ(batch->samples(), id < 25 ? 4 : 0);
    EXPECT_EQ(batch->work, Train(3, id));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(batch->inputs.data()) % 64, 0u);
    for (int64_t i = 0; i < batch->samples(); ++i) {
      ExpectSampleAt(*batch, i, SampleAt(kSeed, 3, static_cast<int64_t>(id) * 4 + i, 100));
      EXPECT_TRUE(seen.insert(batch->sample_ids[i]).second);
    }
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST(Loader, EvaluationIsInOrder) {
  const auto loader = MakeLoader();
  for (uint64_t id = 0; id < 8; ++id) {
    const BatchHandle batch = *loader->Take(Eval(id), Soon());
    EXPECT_EQ(batch->samples(), id < 5 ? 4 : id == 5 ? 1 : 0);
    for (int64_t i = 0; i < batch->samples(); ++i)
      ExpectSampleAt(*batch, i, static_cast<int64_t>(id) * 4 + i);
  }
}

TEST(Loader, WhatWasNotAskedForIsGatheredAtOnce) {
  const auto loader = MakeLoader({.threads = 0});  // no other thread could
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 4)).ok());
  for (uint64_t id : {2, 0, 3, 1, 9}) {
    EXPECT_EQ((*loader->Take(Train(0, id), Soon()))->work.first, id);
  }
  EXPECT_EQ(loader->counts().ready, 0u);
  EXPECT_EQ(loader->counts().waited, 5u);
}

TEST(Loader, SaysWhatIsStaged) {
  const auto loader = MakeLoader({});
  EXPECT_FALSE(loader->Ready(Train(0, 3)));
  ASSERT_TRUE(loader->Prefetch(Train(0, 3, 1)).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!loader->Ready(Train(0, 3)) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_TRUE(loader->Ready(Train(0, 3)));
  ASSERT_TRUE(loader->Take(Train(0, 3), Soon()).ok());
  EXPECT_FALSE(loader->Ready(Train(0, 3)));
}

TEST(Loader, ReadsNoFurtherAheadThanItMay) {
  // A batch of 4 samples takes 4 * (4 + 4 + 8) = 64 bytes: two fit.
  const auto loader = MakeLoader({.read_ahead_bytes_max = 130});
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 24)).ok());
  for (uint64_t id = 0; id < 24; ++id) ASSERT_TRUE(loader->Take(Train(0, id), Soon()).ok());
  EXPECT_LE(loader->counts().buffers, 3u);  // two ahead and one taken
  // Even if it is smaller than one batch, one at a time is staged.
  const auto tiny = MakeLoader({.read_ahead_bytes_max = 1});
  ASSERT_TRUE(tiny->Prefetch(Train(0, 0, 24)).ok());
  for (uint64_t id = 0; id < 24; ++id) ASSERT_TRUE(tiny->Take(Train(0, id), Soon()).ok());
  EXPECT_LE(tiny->counts().buffers, 2u);
}

TEST(Loader, MakesTheBuffersThatItWillNeedAtOnce) {
  // Of the 8 requested at once 4 fit, and 4 are for a step; the third batch may be started while
  // the second is full.
  const auto loader = MakeLoader({.read_ahead_bytes_max = 200, .asked_at_once = 8});
  const uint64_t buffers = loader->counts().buffers;
  EXPECT_EQ(buffers, 8u);
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 24)).ok());
  std::vector<BatchHandle> in_use;
  for (uint64_t id = 0; id < 4; ++id) in_use.push_back(*loader->Take(Train(0, id), Soon()));
  for (uint64_t id = 4; id < 24; ++id) {
    in_use.erase(in_use.begin());
    in_use.push_back(*loader->Take(Train(0, id), Soon()));
  }
  EXPECT_EQ(loader->counts().buffers, buffers);
}

TEST(Loader, TakingOutOfOrderDoesNotDeadlockOnTheReadAhead) {
  const auto loader = MakeLoader({.read_ahead_bytes_max = 130});
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 24)).ok());
  for (uint64_t id = 24; id-- > 0;)
    EXPECT_EQ((*loader->Take(Train(0, id), Soon()))->work.first, id);
}

TEST(Loader, BuffersAreUsedAgain) {
  const auto loader = MakeLoader();
  uint64_t after_first_epoch = 0;
  for (uint32_t epoch = 0; epoch < 5; ++epoch) {
    for (uint64_t step = 0; step < 7; ++step) {
      ASSERT_TRUE(loader->Prefetch(Train(epoch, step * 4, 4)).ok());
      std::vector<BatchHandle> in_use;
      for (uint64_t m = 0; m < 4; ++m)
        in_use.push_back(*loader->Take(Train(epoch, step * 4 + m), Soon()));
    }
    if (epoch == 0) after_first_epoch = loader->counts().buffers;
    EXPECT_LE(loader->counts().buffers, 8u);
  }
  EXPECT_GE(after_first_epoch, 4u);
}

TEST(Loader, RecordsSpans) {
  SpanRing spans;
  const auto loader = MakeLoader({.threads = 0, .spans = &spans});
  ASSERT_TRUE(loader->Take(Train(0, 0), Soon()).ok());
  const SpanRing::Snapshot found = spans.Read(0);
  ASSERT_EQ(found.spans.size(), 1u);
  EXPECT_EQ(found.spans[0].category, SpanCategory::kData);
  EXPECT_EQ(found.spans[0].name(), "gather");
}

TEST(Loader, ABatchOutlivesItsLoader) {
  auto loader = MakeLoader();
  const BatchHandle batch = *loader->Take(Eval(1), Soon());
  loader.reset();
  ExpectSampleAt(*batch, 3, 7);
}

TEST(Loader, ClearForgetsWhatWasAskedFor) {
  const auto loader = MakeLoader({.read_ahead_bytes_max = 130});
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(loader->Prefetch(Train(0, 0, 28)).ok());
    if (round % 2 == 0) {
      ASSERT_TRUE(loader->Take(Train(0, 0), Soon()).ok());
    }
    loader->Clear();
    ASSERT_TRUE(loader->Prefetch(Train(1, 4, 4)).ok());
    for (uint64_t id = 4; id < 8; ++id) {
      const BatchHandle batch = *loader->Take(Train(1, id), Soon());
      ExpectSampleAt(*batch, 0, SampleAt(kSeed, 1, static_cast<int64_t>(id) * 4, 100));
    }
  }
}

TEST(Loader, CancelEndsEveryTake) {
  const auto loader = MakeLoader();
  ASSERT_TRUE(loader->Take(Train(0, 0), Soon()).ok());
  std::thread canceller([&] { loader->Cancel(); });
  absl::Status status;
  while (status.ok()) status = loader->Take(Train(0, 1), Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  canceller.join();
}

TEST(Loader, ManyTakersShareIt) {
  const auto loader = MakeLoader({.read_ahead_bytes_max = 200, .threads = 2});
  ASSERT_TRUE(loader->Prefetch(Train(0, 0, 28)).ok());
  std::vector<std::thread> takers;
  std::vector<int64_t> counts(4, 0);
  for (uint64_t t = 0; t < 4; ++t) {
    takers.emplace_back([&, t] {
      for (uint64_t id = t; id < 28; id += 4)
        counts[t] += (*loader->Take(Train(0, id), Soon()))->samples();
    });
  }
  for (std::thread& taker : takers) taker.join();
  EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3], 100);
}

TEST(Loader, RefusesWorkThatThereIsNot) {
  const auto loader = MakeLoader();
  EXPECT_EQ(loader->Prefetch(Train(0, 28)).message(),
            "expected micro-batches within [0, 28), got 1 from 28");
  EXPECT_FALSE(loader->Prefetch(Train(0, 24, 8)).ok());
  EXPECT_FALSE(loader->Prefetch(Train(0, 0, 0)).ok());
  EXPECT_FALSE(loader->Prefetch(Eval(8)).ok());
  EXPECT_FALSE(
      loader->Prefetch({.purpose = WorkPurpose::kNone, .epoch = 0, .first = 0, .count = 1}).ok());
  EXPECT_FALSE(loader->Take(Train(0, 0, 2), Soon()).ok());
  EXPECT_FALSE(loader->Take(Train(0, 100), Soon()).ok());
  const auto no_test =
      *Loader::Create(Counter(4), nullptr, {.global_batch = 4, .micro_batches = 2});
  EXPECT_FALSE(no_test->Prefetch(Eval(0)).ok());
  EXPECT_FALSE(Loader::Create(Counter(4), nullptr, {.global_batch = 5, .micro_batches = 2}).ok());
  EXPECT_FALSE(
      Loader::Create(Counter(4), Counter(4), {.global_batch = 4, .micro_batches = 3}).ok());
}

}  // namespace
}  // namespace starling

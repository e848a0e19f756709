#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/values/model_file.h"
#include "common/values/slice_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

JobReply Ended(int partitions) {
  JobReply job;
  job.mutable_status()->set_name("digits");
  job.mutable_status()->set_state(CANCELLED);
  for (int i = 0; i < partitions; ++i) {
    View* view = job.add_views();
    view->set_partition(i);
    view->set_primary(i % 2 + 1);
    view->set_primary_address(absl::StrCat("127.0.0.1:", i % 2 + 1));
    job.add_values()->set_partition(i);
  }
  return job;
}

TEST(ValuesAtTheEndTest, EachPartitionIsReadAsTheCoordinatorSays) {
  JobReply job = Ended(3);
  // The job file's policy, which is ignored.
  job.mutable_spec()->mutable_policy()->set_kind(Policy::BSP);
  job.mutable_values(1)->set_version(411);
  const auto point = ValuesAtTheEnd(job);
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_FALSE(point->epoch.has_value());
  EXPECT_THAT(point->versions, ElementsAre(Pair(1, 411)));
}

TEST(ValuesAtTheEndTest, LostValuesAreNamedWithTheirShardEvenBeforeOthersHaveReported) {
  JobReply job = Ended(4);
  job.mutable_values(0)->set_unknown(true);
  for (int i : {1, 3}) job.mutable_values(i)->set_gone("lost with shard ps-1 at 127.0.0.1:2");
  const auto point = ValuesAtTheEnd(job);
  EXPECT_TRUE(absl::IsDataLoss(point.status()));
  EXPECT_THAT(
      std::string(point.status().message()),
      HasSubstr("the values of digits are gone: partitions 1, 3 of 4: lost with shard ps-1 at "));
}

TEST(ValuesAtTheEndTest, WhatIsNotKnownYetNamesWhoHasNotReported) {
  JobReply job = Ended(3);
  for (int i : {0, 2}) job.mutable_values(i)->set_unknown(true);
  const auto point = ValuesAtTheEnd(job);
  EXPECT_TRUE(absl::IsUnavailable(point.status()));
  EXPECT_THAT(std::string(point.status().message()),
              HasSubstr("shard 1 at 127.0.0.1:1 has not told"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ValuesAtTheEnd(Ended(0)).status()));
}

// protobuf's order of map entries depends on addresses: equal models must still give equal text.
TEST(ModelMetadataTest, EqualModelsGiveEqualBytes) {
  std::set<std::string> texts;
  for (int i = 0; i < 30; ++i) {
    JobReply job = Ended(1);
    Node* node = job.mutable_spec()->mutable_model()->add_nodes();
    std::vector<std::string> names;
    for (int j = 0; j < 12; ++j) names.push_back(absl::StrCat("attribute_", j));
    std::rotate(names.begin(), names.begin() + i % 12, names.end());
    for (const std::string& name : names) (*node->mutable_attributes())[name].set_i(1);
    texts.insert(ModelMetadata(job, {}).at(kModelKey));
  }
  EXPECT_EQ(texts.size(), 1u);
  const size_t first = texts.begin()->find("attribute_0"),
               last = texts.begin()->find("attribute_9");
  EXPECT_LT(first, last);
}

}  // namespace
}  // namespace starling

#include "common/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/digest.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

const CheckpointId kManifestId{0xc0ffee, JobUid(12), 3};

CheckpointManifest Full() {
  CheckpointManifest manifest = TinyManifest(kManifestId, 27);
  for (const uint32_t shard : {1, 3}) {
    CheckpointFile* const file = manifest.add_files();
    file->set_name(ShardFileName(ShardId(shard)));
    file->set_bytes(1000 * shard);
    file->set_xxh3(std::string("\0\xff 0123456789abc", 16));
  }
  manifest.mutable_job()->set_data_digest(std::numeric_limits<uint64_t>::max());
  manifest.set_loss_scale_log2(-1);
  manifest.set_train_loss(0.1 + 0.2);
  manifest.set_first_loss(std::numeric_limits<double>::infinity());
  manifest.set_copy_epoch(0);
  manifest.add_results()->set_train_loss(1.0 / 3);
  manifest.add_points()->set_step(26);
  manifest.add_evaluating(1);
  return manifest;
}

TEST(CheckpointManifestTest, ComesBackAsItWas) {
  const CheckpointManifest manifest = Full();
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, HasSubstr(R"({"format":"starling-checkpoint/1","xxh3":")"));
  EXPECT_EQ(text.back(), '\n');
  const auto parsed = ParseManifest(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*parsed, manifest))
      << parsed->DebugString();
}

TEST(CheckpointManifestTest, NoBitOrLengthChangesUnseen) {
  const std::string text = EncodeManifest(Full());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(ParseManifest(damaged).status())) << "bit " << bit;
  }
  for (size_t size = 0; size < text.size(); ++size)
    ASSERT_TRUE(absl::IsDataLoss(ParseManifest(text.substr(0, size)).status())) << size;
  EXPECT_TRUE(absl::IsDataLoss(ParseManifest(text + "\n").status()));
}

TEST(CheckpointManifestTest, OneThatMakesNoSenseIsRefused) {
  const auto refused = [](auto change) {
    CheckpointManifest manifest = Full();
    change(&manifest);
    const absl::Status status = ParseManifest(EncodeManifest(manifest)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << manifest.DebugString();
    return std::string(status.message());
  };
  using M = CheckpointManifest;
  EXPECT_THAT(refused([](M* m) { m->set_format(2); }), HasSubstr("expected format 1, got 2"));
  EXPECT_THAT(refused([](M* m) { m->set_id("x"); }),
              HasSubstr("a checkpoint of job 12, got \"x\""));
  EXPECT_THAT(refused([](M* m) { m->mutable_job()->mutable_run()->set_job_uid(13); }),
              HasSubstr("a checkpoint of job 13"));
  EXPECT_THAT(refused([](M* m) { m->mutable_job()->mutable_spec()->clear_model(); }),
              HasSubstr("no parameters"));
  EXPECT_THAT(refused([](M* m) { m->mutable_job()->clear_train_samples(); }),
              HasSubstr("no samples"));
  EXPECT_THAT(refused([](M* m) { m->clear_files(); }), HasSubstr("no files"));
  EXPECT_THAT(refused([](M* m) { m->mutable_files(1)->set_name("../manifest.json"); }),
              HasSubstr("got \"../manifest.json\""));
  EXPECT_THAT(refused([](M* m) { m->mutable_files(1)->set_name(m->files(0).name()); }),
              HasSubstr("each once"));
  EXPECT_THAT(refused([](M* m) { m->mutable_files(0)->set_xxh3("short"); }), HasSubstr("digest"));
}

TEST(CheckpointManifestTest, AFieldOfALaterReleaseIsRefusedByName) {
  const std::string text = EncodeManifest(Full());
  const size_t begin = text.find("\"body\":") + 7;
  const std::string body =
      absl::StrCat("{\"unheard\":1,", text.substr(begin + 1, text.size() - begin - 3));
  const absl::Status status =
      ParseManifest(absl::StrCat("{\"format\":\"starling-checkpoint/1\",\"xxh3\":\"",
                                 absl::BytesToHexString(Xxh128Of(body)), "\",\"body\":", body,
                                 "}\n"))
          .status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("unheard"));
}

TEST(CheckpointManifestTest, IsDescribedForLists) {
  const CheckpointManifest manifest = Full();
  const std::string text = EncodeManifest(manifest);
  const CheckpointInfo info = DescribeCheckpoint(manifest, text);
  EXPECT_EQ(info.id(), "0000000000c0ffee-12-3");
  EXPECT_EQ(info.job(), "digits");
  EXPECT_EQ(info.step(), 27u);
  EXPECT_EQ(info.epoch(), 2u);  // of 13 steps each
  EXPECT_EQ(info.bytes(), 4000 + text.size());
  EXPECT_EQ(info.created(), manifest.created());
  EXPECT_FALSE(info.asked_for());
  EXPECT_EQ(info.manifest_digest(), ManifestDigest(text));
  // Of the parameters alone, in any order.
  CheckpointManifest other = manifest;
  other.set_step(28);
  other.mutable_job()->mutable_spec()->mutable_model()->mutable_parameters()->SwapElements(0, 3);
  EXPECT_EQ(DescribeCheckpoint(other, text).model_digest(), info.model_digest());
  other.mutable_job()->mutable_spec()->mutable_model()->mutable_parameters(1)->set_shape(0, 3);
  EXPECT_NE(DescribeCheckpoint(other, text).model_digest(), info.model_digest());
}

TEST(WhyItDoesNotFitTest, EveryTensorIsNamed) {
  const CheckpointManifest manifest = Full();
  Graph model = manifest.job().spec().model();
  EXPECT_EQ(WhyItDoesNotFit(manifest, model), "");
  model.mutable_parameters()->SwapElements(0, 3);  // now table, conv@2, norm.mean, conv.weight
  EXPECT_EQ(WhyItDoesNotFit(manifest, model), "");
  model.mutable_parameters(0)->set_name("head");
  model.mutable_parameters(2)->set_name("tail");
  model.mutable_parameters(1)->add_shape(1);
  model.mutable_parameters(3)->set_shape(0, 8);
  EXPECT_EQ(WhyItDoesNotFit(manifest, model),
            "the checkpoint lacks head[3], tail[5]; the model lacks norm.mean[5], table[3]; the "
            "checkpoint has conv.weight[2,2,4] instead of [8,2,4], conv@2[2] instead of [2,1]");
}

}  // namespace
}  // namespace starling

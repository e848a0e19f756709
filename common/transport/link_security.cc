#include "common/transport/link_security.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

// The most time between the replacements of a certificate and its key; reads repeat until then.
constexpr absl::Duration kReplacedWithin = absl::Seconds(2);
constexpr absl::Duration kReadAgainAfter = absl::Milliseconds(20);
constexpr absl::Duration kWatchPeriod = absl::Seconds(1);
constexpr absl::Duration kComplaintInterval = absl::Seconds(10);
constexpr absl::Duration kEndsSoon = absl::Hours(24);
constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kAddressShownMax = 300;

absl::StatusOr<std::string> ReadTlsFile(const char* flag, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad() || !in.eof() || text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path,
                                                   ": cannot be read, is empty, or has more than ",
                                                   kFileBytesMax, " bytes; expected a PEM file"));
  }
  return text;
}

absl::Status InFile(const char* flag, const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", status.message()));
}

// A name, an IPv4 address, or an IPv6 address in brackets: nothing that gRPC takes for another kind
// of target (unix:/path, dns://server/name, several addresses).
bool IsHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr address = {};
    return absl::ConsumeSuffix(&host, "]") &&
           inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
  }
  const auto good = [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  };
  return !host.empty() && std::all_of(host.begin(), host.end(), good);
}

bool IsPort(absl::string_view port) {
  int number = 0;
  return !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(port, &number) && number <= 65535;
}

absl::StatusOr<std::string> HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || !IsHost(address.substr(0, colon)) ||
      !IsPort(address.substr(colon + 1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an address must be host:port, as 127.0.0.1:7070, [::1]:7070 or name:7070, not \"",
        absl::CHexEscape(address.substr(0, kAddressShownMax)), "\""));
  }
  return std::string(address.substr(0, colon));
}

bool IsLoopback(const std::string& host) {
  in_addr address = {};
  return host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127);
}

absl::Status CheckAddress(absl::string_view verb, absl::string_view address,
                          const LinkSecurity* security) {
  absl::StatusOr<std::string> host = HostOf(address);
  if (!host.ok()) return host.status();
  if (security != nullptr && (security->tls() || security->insecure())) return absl::OkStatus();
  if (IsLoopback(*host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("refusing to ", verb, " ", address,
                   ": without TLS only loopback addresses (127.0.0.1, [::1], ",
                   "localhost) are used, because anyone on the network could read and forge what "
                   "goes over it; give ",
                   "--tls-cert, --tls-key and --tls-ca, or --insecure if that is what you want"));
}

}  // namespace

std::shared_ptr<const LinkSecurity> LinkSecurity::Loopback() {
  return std::shared_ptr<const LinkSecurity>(new LinkSecurity(Mode::kLoopback));
}

std::shared_ptr<const LinkSecurity> LinkSecurity::Insecure() {
  return std::shared_ptr<const LinkSecurity>(new LinkSecurity(Mode::kInsecure));
}

absl::StatusOr<std::shared_ptr<const LinkSecurity>> LinkSecurity::Tls(
    const TlsFiles& files, const CertificateOwner& self) {
  std::shared_ptr<LinkSecurity> security(new LinkSecurity(Mode::kTls));
  security->files_ = files;
  security->self_ = self;
  // Tools replace the files one after another, so a key that does not match its certificate is read
  // again for a while.
  const absl::Time until = MonotonicNow() + kReplacedWithin;
  for (;;) {
    STARLING_ASSIGN_OR_RETURN(security->contents_, security->ReadFiles());
    const Contents& contents = security->contents_;
    if (CheckKey(contents.certificate, contents.key).ok() || MonotonicNow() >= until) break;
    absl::SleepFor(kReadAgainAfter);
  }
  STARLING_RETURN_IF_ERROR(security->Install(security->contents_));
  security->watcher_ = std::thread([raw = security.get()] { raw->Watch(); });
  return std::shared_ptr<const LinkSecurity>(std::move(security));
}

LinkSecurity::~LinkSecurity() {
  if (!watcher_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stopping_.SignalAll();
  }
  watcher_.join();
}

absl::StatusOr<LinkSecurity::Contents> LinkSecurity::ReadFiles() const {
  Contents contents;
  STARLING_ASSIGN_OR_RETURN(contents.certificate, ReadTlsFile("--tls-cert", files_.certificate));
  STARLING_ASSIGN_OR_RETURN(contents.key, ReadTlsFile("--tls-key", files_.key));
  STARLING_ASSIGN_OR_RETURN(contents.authorities, ReadTlsFile("--tls-ca", files_.authorities));
  return contents;
}

// Checks both directions: a daemon is a client and a server.
absl::Status LinkSecurity::CheckOwn(const Contents& contents,
                                    const CertificateAuthorities& authorities) const {
  for (const CertificateUse use : {CertificateUse::kClient, CertificateUse::kServer}) {
    if (use == CertificateUse::kServer && self_.role == PeerRole::kClient) continue;
    const auto refusal =
        authorities.Check(contents.certificate, contents.certificate, use, absl::Now());
    if (!refusal.has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", files_.certificate,
                                                   " is not good with --tls-ca ",
                                                   files_.authorities, ": ", refusal->text));
  }
  return absl::OkStatus();
}

absl::Status LinkSecurity::Install(const Contents& contents) {
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(contents.certificate);
  STARLING_RETURN_IF_ERROR(InFile("--tls-cert", files_.certificate, facts.status()));
  STARLING_RETURN_IF_ERROR(InFile("--tls-cert", files_.certificate, facts->owner.status()));
  if (*facts->owner != self_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-cert ", files_.certificate, ": expected a certificate of ", OwnerUri(self_),
        ", got one of ", OwnerUri(*facts->owner),
        facts->owner->cluster == self_.cluster ? "" : "; --cluster says which cluster this is"));
  }
  STARLING_RETURN_IF_ERROR(
      InFile("--tls-key", files_.key, CheckKey(contents.certificate, contents.key)));
  auto authorities = CertificateAuthorities::Read(contents.authorities);
  STARLING_RETURN_IF_ERROR(InFile("--tls-ca", files_.authorities, authorities.status()));
  STARLING_RETURN_IF_ERROR(CheckOwn(contents, **authorities));
  MutexLock lock(&mutex_);
  authorities_ = *std::move(authorities);
  valid_until_ = facts->not_after;
  return absl::OkStatus();
}

// gRPC watches the key and certificate files itself. This thread reads them, too, so that the log
// reports changes, and maintains the authorities by which peers are verified.
void LinkSecurity::Watch() {
  std::string said;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const absl::Time next = MonotonicNow() + kWatchPeriod;
      while (!stop_ && !stopping_.WaitWithDeadline(&mutex_, next)) {
      }
      if (stop_) return;
    }
    absl::StatusOr<Contents> contents = ReadFiles();
    absl::Status status = contents.status();
    if (status.ok() && *contents != contents_) {
      status = Install(*contents);
      if (status.ok()) {
        contents_ = *std::move(contents);
        spdlog::info("took up new certificates: {} is good until {}", files_.certificate,
                     absl::FormatTime(valid_until(), absl::UTCTimeZone()));
      }
    }
    std::string problem(status.message());
    if (problem.empty() && valid_until() < absl::Now() + kEndsSoon) {
      problem = absl::StrCat("--tls-cert ", files_.certificate, " ends at ",
                             absl::FormatTime(valid_until(), absl::UTCTimeZone()),
                             "; put a new one in its place");
    }
    if (!problem.empty() && problem != said) spdlog::error("{}", problem);
    said = problem;
  }
}

absl::Time LinkSecurity::valid_until() const {
  MutexLock lock(&mutex_);
  return valid_until_;
}

std::shared_ptr<void> LinkSecurity::Shared(
    const std::function<std::shared_ptr<void>()>& make) const {
  absl::MutexLock lock(&shared_mutex_);
  if (shared_ == nullptr) shared_ = make();
  return shared_;
}

std::optional<CertificateAuthorities::Refusal> LinkSecurity::CheckCertificate(
    absl::string_view leaf_pem, absl::string_view chain_pem, CertificateUse use) const {
  std::shared_ptr<const CertificateAuthorities> authorities;
  {
    MutexLock lock(&mutex_);
    authorities = authorities_;
  }
  const absl::Time now = absl::Now();
  auto refusal = authorities->Check(leaf_pem, chain_pem, use, now);
  if (!refusal.has_value() || use == CertificateUse::kServer) return refusal;
  refusals_.CountHandshake(refusal->reason);
  bool say = false;
  {
    MutexLock lock(&mutex_);
    say = now - complained_ >= kComplaintInterval;
    if (say) complained_ = now;
  }
  if (say) spdlog::warn("refused a connection: {}", refusal->text);
  return refusal;
}

absl::Status CheckListenAddress(absl::string_view address, const LinkSecurity* security) {
  return CheckAddress("listen on", address, security);
}

absl::Status CheckPeerAddress(absl::string_view address, const LinkSecurity* security) {
  return CheckAddress("connect to", address, security);
}

}  // namespace starling

#!/usr/bin/env bash
# Makes certificates for a cluster, signed by an authority of its own. For tests and trials: the
# authority's key is kept beside what it signs. docs/security.md says what a certificate must hold.
#
#   tools/make_certs.sh FOLDER [--cluster NAME] [--days N] [ROLE ...]
#   tools/make_certs.sh FOLDER [--cluster NAME] [--days N] --new-authority|--use-new|--forget-old
#
# Writes FOLDER/ROLE/tls.crt, tls.key and ca.crt for each ROLE (client, worker, shard, coordinator;
# without any: all four), for --tls-cert, --tls-key and --tls-ca. The authority is
# FOLDER/authority.crt and authority.key, made the first time. Called again it signs new
# certificates, which replace the old ones and which running processes take up.
#
# --cluster NAME    the certificates' cluster (default: starling)
# --days N          how long they are valid (default: 30)
#
# A new authority takes three calls, each for all roles. Between two calls all processes must have
# taken up the result of the one before: a process that lags would meet a certificate that it does
# not trust.
#
# --new-authority   ca.crt trusts a new one as well; the old one still signs
# --use-new         the new one signs; ca.crt still trusts both
# --forget-old      ca.crt trusts the new one only
#
# FOLDER/.gitignore keeps all of it out of a repository.
#
# Exit status: 0 done; 1 it failed; 2 a wrong argument.
set -euo pipefail
umask 077

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

folder="" cluster=starling days=30 round=""
roles=()
while (($# > 0)); do
  case "$1" in
    --cluster) cluster=${2:?"--cluster needs a name"} && shift ;;
    --days) days=${2:?"--days needs a number"} && shift ;;
    --new-authority | --use-new | --forget-old)
      if [[ -n "$round" ]]; then usage; fi
      round=$1
      ;;
    client | worker | shard | coordinator) roles+=("$1") ;;
    -*) usage ;;
    *)
      if [[ -n "$folder" ]]; then usage; fi
      folder=$1
      ;;
  esac
  shift
done
[[ -n "$folder" ]] || usage
[[ "$cluster" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || usage
[[ "$days" =~ ^[1-9][0-9]*$ ]] || usage
if [[ -n "$round" ]] && ((${#roles[@]} > 0)); then usage; fi
if ((${#roles[@]} == 0)); then roles=(client worker shard coordinator); fi
mkdir -p "$folder"
echo '*' >"$folder/.gitignore"

fail() {
  echo "make_certs.sh: $1" >&2
  exit 1
}

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

# Makes $1.crt and $1.key in the folder.
make_authority() {
  local name=$1
  key "$folder/$name.key.new"
  # Each has its own name, so that two can be told apart.
  openssl req -x509 -new -key "$folder/$name.key.new" -sha256 -days $((days * 10)) \
    -subj "/O=$cluster/CN=authority $(date -u +%Y-%m-%dT%H:%M:%S.%NZ)" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign" \
    -out "$folder/$name.crt.new"
  mv "$folder/$name.key.new" "$folder/$name.key"
  mv "$folder/$name.crt.new" "$folder/$name.crt"
}

# FOLDER/ROLE is a link to the newest of ROLE's folders, so that its three files change at once. The
# previous folder stays: a process may be reading it.
make_certificate() {
  local role=$1 usage=clientAuth into before other
  into=$(mktemp -d "$folder/.$1.XXXXXX")
  before=$(readlink "$folder/$role" || true)
  if [[ "$role" != client ]]; then usage=clientAuth,serverAuth; fi
  key "$into/tls.key"
  openssl req -new -key "$into/tls.key" -subj "/O=$cluster/CN=$role" -out "$into/request"
  openssl x509 -req -in "$into/request" -sha256 -days "$days" -CA "$folder/authority.crt" \
    -CAkey "$folder/authority.key" -set_serial "0x$(openssl rand -hex 8)" -out "$into/tls.crt" \
    -extfile <(
      echo "basicConstraints=CA:FALSE"
      echo "keyUsage=critical,digitalSignature"
      echo "extendedKeyUsage=$usage"
      echo "subjectAltName=URI:starling://$cluster/$role"
    ) 2>/dev/null
  rm "$into/request"
  cat "$folder/authority.crt" >"$into/ca.crt"
  for other in next old; do
    if [[ -f "$folder/authority.$other.crt" ]]; then
      cat "$folder/authority.$other.crt" >>"$into/ca.crt"
    fi
  done
  ln -s "${into##*/}" "$into.link"
  mv -T "$into.link" "$folder/$role"
  find "$folder" -maxdepth 1 -name ".$role.*" ! -name "${into##*/}" ! -name "${before:-none}" \
    -exec rm -r {} +
}

has() { [[ -f "$folder/authority$1" ]]; }

case "$round" in
  --new-authority)
    has .key || fail "there is no authority in $folder yet: call it without $round"
    if has .next.crt; then fail "there is a new authority already: --use-new is next"; fi
    if has .old.crt; then fail "the old authority is still trusted: --forget-old is next"; fi
    make_authority authority.next
    ;;
  --use-new)
    has .next.crt || fail "there is no new authority: --new-authority comes before"
    mv "$folder/authority.crt" "$folder/authority.old.crt"
    mv "$folder/authority.next.key" "$folder/authority.key"
    mv "$folder/authority.next.crt" "$folder/authority.crt"
    ;;
  --forget-old)
    has .old.crt || fail "there is no old authority: --use-new comes before"
    rm "$folder/authority.old.crt"
    ;;
  *)
    if ! has .key; then make_authority authority; fi
    ;;
esac
for role in "${roles[@]}"; do make_certificate "$role"; done

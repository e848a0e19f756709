#!/usr/bin/env bash
# Makes certificates for a cluster, signed by an authority of its own. For tests and trials: the
# authority's key lies beside what it signs. docs/security.md says what a certificate must hold.
#
#   tools/make_certs.sh FOLDER [--cluster NAME] [--days N] [--new-authority] [ROLE ...]
#
# Writes FOLDER/ROLE/tls.crt, tls.key and ca.crt for each ROLE (client, worker, shard, coordinator;
# without any: all four), as --tls-cert, --tls-key and --tls-ca want them. The authority is
# FOLDER/authority.crt and authority.key, made the first time. Called again it signs new
# certificates in place of the old ones, which running processes take up.
#
# --cluster NAME    whose certificates they are (default: starling)
# --days N          how long they are good (default: 30)
# --new-authority   signs with a new authority; ca.crt trusts the old one as well, until the next
#                   call with --new-authority
#
# Exit status: 0 done; 1 it failed; 2 a wrong argument.
set -euo pipefail
umask 077

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

folder="" cluster=starling days=30 new_authority=false
roles=()
while (($# > 0)); do
  case "$1" in
    --cluster) cluster=${2:?"--cluster needs a name"} && shift ;;
    --days) days=${2:?"--days needs a number"} && shift ;;
    --new-authority) new_authority=true ;;
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
if ((${#roles[@]} == 0)); then roles=(client worker shard coordinator); fi
mkdir -p "$folder"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

make_authority() {
  key "$folder/authority.key.new"
  # Each has a name of its own, so that two can be told apart.
  openssl req -x509 -new -key "$folder/authority.key.new" -sha256 -days $((days * 10)) \
    -subj "/O=$cluster/CN=authority $(date -u +%Y-%m-%dT%H:%M:%S.%NZ)" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign" \
    -out "$folder/authority.crt.new"
  mv "$folder/authority.key.new" "$folder/authority.key"
  mv "$folder/authority.crt.new" "$folder/authority.crt"
}

# FOLDER/ROLE is a link to the newest of ROLE's folders, so that its three files change at once. The one
# before stays: somebody may be reading it.
make_certificate() {
  local role=$1 usage=clientAuth into before
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
  if [[ -f "$folder/authority.old.crt" ]]; then cat "$folder/authority.old.crt" >>"$into/ca.crt"; fi
  ln -s "${into##*/}" "$into.link"
  mv -T "$into.link" "$folder/$role"
  find "$folder" -maxdepth 1 -name ".$role.*" ! -name "${into##*/}" ! -name "${before:-none}" \
    -exec rm -r {} +
}

if $new_authority && [[ -f "$folder/authority.crt" ]]; then
  mv "$folder/authority.crt" "$folder/authority.old.crt"
  rm -f "$folder/authority.key"
fi
if [[ ! -f "$folder/authority.key" ]]; then make_authority; fi
for role in "${roles[@]}"; do make_certificate "$role"; done

#!/usr/bin/env bash
# Builds the library and installs it with its header, pkg-config file and CMake package:
#
#   ffi/install.sh [--prefix DIR] [--libdir NAME] [--destdir DIR] [--target TRIPLE]
#
# to /usr/local and lib by default. A destdir goes before all paths, but into none of the files.
# A target is another machine, of which Rust's `core` has to be there. STRIP is the command that takes
# debugging information off: strip by default, nothing for a target.
set -euo pipefail

usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

prefix=/usr/local libdir=lib destdir= target=
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --libdir | --destdir | --target)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    --help | -h)
      usage
      exit
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done
case "$prefix" in
  /*) ;;
  *) echo "--prefix must be an absolute path" >&2; exit 2 ;;
esac
case "$libdir" in
  /*) echo "--libdir is a folder of the prefix" >&2; exit 2 ;;
esac

ffi=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ffi/Cargo.toml" | head -1)
# Cargo says where it put the two, whatever its settings are.
built=$(cargo build --profile dist --manifest-path "$ffi/Cargo.toml" ${target:+--target "$target"} \
  --message-format json-render-diagnostics | tr ',[]' '\n' | sed -n 's,^"\(.*/libamla\.\(a\|so\)\)"$,\1,p')
archive=$(grep '\.a$' <<<"$built") || { echo "cargo built no libamla.a" >&2; exit 1; }
shared=$(grep '\.so$' <<<"$built") || echo "no shared library for this target"

# From lib/cmake/amla, or lib/x86_64-linux-gnu/cmake/amla, back to the prefix.
to_prefix=../..$(printf '%s' "/$libdir" | sed 's,/[^/][^/]*,/..,g')
fill() {
  sed -e "s,@PREFIX@,$prefix,g" -e "s,@LIBDIR@,\${prefix}/$libdir,g" -e "s,@VERSION@,$version,g" \
    -e "s,@MAJOR_MINOR@,${version%.*},g" -e "s,@TO_PREFIX@,$to_prefix,g" "$1" >"$2"
  chmod 644 "$2"
}

lib=$destdir$prefix/$libdir
mkdir -p "$destdir$prefix/include" "$lib/pkgconfig" "$lib/cmake/amla"
for header in amla.h amla.cdef.h; do
  install -m 644 "$ffi/include/$header" "$destdir$prefix/include/$header"
done
# The host's may not know another machine's files.
strip=${STRIP:-strip}
[ -z "$target" ] || strip=${STRIP:-true}
command -v "$strip" >/dev/null || { echo "$strip is missing: the libraries are not stripped" >&2; strip=true; }
install -m 644 "$archive" "$lib/libamla.a"
"$strip" --strip-debug "$lib/libamla.a"
if [ -n "$shared" ]; then
  # Programs look for the name with the minor version, linkers for the one without.
  install -m 755 "$shared" "$lib/libamla.so.$version"
  "$strip" --strip-unneeded "$lib/libamla.so.$version"
  ln -sf "libamla.so.$version" "$lib/libamla.so.${version%.*}"
  ln -sf "libamla.so.${version%.*}" "$lib/libamla.so"
fi
fill "$ffi/amla.pc.in" "$lib/pkgconfig/amla.pc"
for file in amla-config amla-config-version; do
  fill "$ffi/cmake/$file.cmake.in" "$lib/cmake/amla/$file.cmake"
done

# The library's own licences, and those of the crates that are compiled into it.
licences=$destdir$prefix/share/licenses/amla
mkdir -p "$licences"
install -m 644 "$ffi"/../LICENSE-* "$licences"
cargo metadata --format-version 1 --manifest-path "$ffi/Cargo.toml" | tr ',{' '\n\n' |
  sed -n 's,^"manifest_path":"\(.*\)/Cargo.toml".*,\1,p' >"$licences/.folders"
for crate in $(cargo tree --manifest-path "$ffi/Cargo.toml" -e normal,no-proc-macro --prefix none --format '{p}' |
  awk '!/\//{print $1 "-" substr($2, 2)}' | sort -u); do
  folder=$(grep "/$crate\$" "$licences/.folders") || { echo "where is $crate?" >&2; exit 1; }
  mkdir -p "$licences/${crate%-*}"
  install -m 644 "$folder"/LICENSE* "$licences/${crate%-*}"
done
rm "$licences/.folders"

#!/usr/bin/env bash
# Builds the library and installs it with its header, pkg-config file and CMake package:
#
#   ffi/install.sh [--prefix DIR] [--libdir NAME] [--destdir DIR] [--target TRIPLE]
#
# to /usr/local and lib by default. A destdir goes before all paths, but into none of the files.
# A target is another machine, of which Rust's `core` has to be there.
set -euo pipefail

prefix=/usr/local libdir=lib destdir= target=
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --libdir | --destdir | --target)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *)
      sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
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
install -m 644 "$archive" "$lib/libamla.a"
[ -z "$shared" ] || install -m 755 "$shared" "$lib/libamla.so"
fill "$ffi/amla.pc.in" "$lib/pkgconfig/amla.pc"
for file in amla-config amla-config-version; do
  fill "$ffi/cmake/$file.cmake.in" "$lib/cmake/amla/$file.cmake"
done

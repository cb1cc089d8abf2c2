# A thin front for the presets of CMakePresets.json; `make help` lists the targets.
PREFIX ?= /usr/local

.PHONY: all demo test wheel wheel-test python-test fla-tests mqar asan tsan cuda-test cuda-coverage cuda-sanitize format reference check-layers check-locale install uninstall deb clean help

all: ## build build/release/deltarule (the default)
	@command -v cmake >/dev/null && command -v ninja >/dev/null || { echo "cmake or ninja is missing: run tools/install-packages build" >&2; exit 1; }
	cmake --preset release
	cmake --build --preset release --target deltarule

demo: ## train, score and sample a small language model on real text (CORPUS=PATH for your own)
	@tools/demo

test: ## build and run all tests
	@tools/install-packages build
	cmake --preset release
	cmake --build --preset release
	ctest --preset release

wheel: ## build/wheel, the Python package for glibc 2.28 and later, and its sources (needs PyPI)
	@tools/install-packages build
	@tools/make-wheel

wheel-test: ## that wheel as someone has it who has only pip (PYTHONS="python3.9 python3.13": the Pythons to try it with; all that are here)
	@tools/install-packages python
	tests/tools/wheel.sh build/wheel/deltarule-*.whl --sources build/wheel/deltarule-*.tar.gz $(PYTHONS)

python-test: ## the Python package's tests, in an environment with PyTorch that is made once (some 6 GB from PyPI)
	@tools/install-packages build
	cmake --preset release
	cmake --build --preset release --target deltarule deltarule_shared
	@tools/python-environment
	python/tests/run build/release/libdeltarule.so build/release/deltarule python/tests

fla-tests: ## CLONE=PATH: flash-linear-attention's own tests, of a clone of it, against deltarule.fla (ARGS: --files, --limit, ...)
	@[ -n "$(CLONE)" ] || { echo "name a clone of flash-linear-attention: make fla-tests CLONE=PATH" >&2; exit 2; }
	@tools/install-packages build
	cmake --preset release
	cmake --build --preset release --target deltarule deltarule_shared
	@environment=$$(tools/python-environment) && DELTARULE_LIBRARY="$$PWD/build/release/libdeltarule.so" \
		"$$environment/bin/python" python/tests/run_fla_tests.py "$(CLONE)" --path python $(or $(ARGS),--files ops --limit 1e7)

mqar: ## compare six rules at associative recall
	@tools/mqar

asan: ## all tests under the address, leak and undefined-behaviour sanitizers
	@tools/install-packages build
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

tsan: ## all tests under the thread sanitizer
	@tools/install-packages build tsan
	cmake --preset tsan
	cmake --build --preset tsan
	ctest --preset tsan

cuda-test: ## build with the CUDA backend and hold it, on this machine's GPU, to recorded results and properties (SEEDS=A..B: a long run)
	cmake --preset cuda
	cmake --build --preset cuda --target deltarule cuda_tests
	@tools/test-cuda build/cuda

cuda-coverage: ## what rules beside gdn and kda cost on this machine's GPU, beside what they must move; fails beyond the bounds
	cmake --preset cuda
	cmake --build --preset cuda --target cuda_coverage
	@build/cuda/tests/cuda_coverage

cuda-sanitize: ## the same build's test shapes under compute-sanitizer
	cmake --preset cuda
	cmake --build --preset cuda --target deltarule cuda_tests
	@tools/sanitize-cuda build/cuda

format: ## lay out all C files by .clang-format
	@tools/install-packages check
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

reference: ## build/reference/html, the C API from the public headers
	@tools/install-packages reference
	@case "$$PWD" in *' '*) echo "doxygen follows no links between pages below a folder whose path has blanks: $$PWD" >&2; exit 1 ;; esac
	mkdir -p build/reference
	doxygen docs/Doxyfile

check-layers: ## refuse includes across the layers of src/
	@tools/check-layers

check-locale: ## refuse what depends on the locale, beside src/base/number.c
	@tools/check-locale

install: ## install under PREFIX (default /usr/local); DESTDIR goes before it
	cmake --preset release
	cmake --build --preset release --target deltarule deltarule_shared deltarule_static deltarule_check_shared deltarule_check_static
	cmake --install build/release --prefix '$(PREFIX)'

uninstall: ## remove what `make install` installed
	cmake --build build/release --target uninstall

deb: ## build/deb/deltarule_*.deb, a Debian package
	cmake -S . -B build/deb -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DBUILD_TESTING=OFF
	cmake --build build/deb
	cd build/deb && cpack -G DEB

clean: ## remove what was built
	rm -rf build/dev build/release build/asan build/tsan build/fuzz build/cuda build/aarch64 build/deb build/reference build/wheel build/wheel-raw build/wheel-build

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS='	' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

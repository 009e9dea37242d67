// Package testdata gives tests their way to the committed test data and to the larger folder of
// real models that may lie beside the checkout.
package testdata

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Path joins elem to the absolute path of the repository's testdata folder.
func Path(elem ...string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(file)}, elem...)...)
}

// Shared joins elem to the folder of real models and reference data: $QTOOL_SHARED, else the
// folder "shared" beside the checkout. The test is skipped where it is absent, since it is too
// large to commit.
func Shared(t testing.TB, elem ...string) string {
	t.Helper()
	root := os.Getenv("QTOOL_SHARED")
	if root == "" {
		root = filepath.Join(filepath.Dir(filepath.Dir(Path())), "shared")
	}
	path := filepath.Join(append([]string{root}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("reference data not there: %v", err)
	}
	return path
}

package stageintest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// QuietLog returns a logger that discards everything.
func QuietLog() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// ClusterMap returns a map of n nodes that are all up.
func ClusterMap(n int) cluster.Map {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("n%d", i)
	}
	m := cluster.NewMap(42, hosts)
	for i := range hosts {
		m = m.WithState(metadata.NodeID(i), cluster.Up, hosts[i]+":1")
	}
	return m
}

// ErrorHas reports whether err contains all parts.
func ErrorHas(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return err != nil
}

// NoError fails the test if there is an error.
func NoError(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// RandBytes returns n random bytes.
func RandBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Rand returns a generator and logs its seed.
func Rand(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

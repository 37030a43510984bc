package stats

import (
	"log/slog"
	"testing"
)

// What a record costs the data path. The bound is 2 µs; it is not asserted under
// the race detector.
func BenchmarkAdd(b *testing.B) {
	s := open(b, inFile(b))
	r := turn(noon)
	b.ReportAllocs()
	for b.Loop() {
		s.Add(r)
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	s, err := New(Options{Path: MemoryOnly, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := turn(noon)
	if n := testing.AllocsPerRun(1000, func() { s.Add(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

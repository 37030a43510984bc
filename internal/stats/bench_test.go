package stats

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
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

// What the writer takes for a record, a second's load at a time: 8 conversations on
// 4 replicas.
func BenchmarkWrite(b *testing.B) {
	s := open(b, inFile(b))
	const load = 2000
	at := noon
	for b.Loop() {
		at = at.Add(time.Second)
		for i := range load {
			r := turn(at)
			r.Replica, r.Conversation = i%4, fmt.Sprintf("c-%012x", i%8)
			r.TTFB, r.Duration = time.Duration(i%500)*time.Millisecond, time.Duration(i%700)*time.Millisecond
			s.Add(r)
		}
		if err := s.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*load), "ns/record")
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

// What a step of a chart costs: a sketch of 300 bins read, told and added to that
// of the range.
func BenchmarkSketch(b *testing.B) {
	var one, step, all sketch
	for i := range 600 {
		one.add(20 * time.Millisecond * time.Duration(1+i))
	}
	encoded := one.encoded()
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		if err := step.merge(encoded); err != nil {
			b.Fatal(err)
		}
		step.quantiles()
		all.join(&step)
		step.reset()
	}
}

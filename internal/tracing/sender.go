package tracing

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// stopFor is how long a gateway that stops waits for its collector.
	stopFor = 3 * time.Second
	// tellEvery is how often the log is told of lost spans.
	tellEvery = time.Minute
)

var errFull = errors.New("the collector does not keep up")

// sender bounds what waits for an exporter, and tells the log of what was lost.
// The library's own bound drops in silence, and its errors go to a handler that
// the whole process shares.
type sender struct {
	sdk.SpanExporter
	log     *slog.Logger
	waiting atomic.Int64
	// open ends when exports are to be given up.
	open    context.Context
	abandon context.CancelFunc

	mu   sync.Mutex
	lost int       // guarded by mu; spans, since the log was told
	why  error     // guarded by mu; of the latest of them
	told time.Time // guarded by mu
}

func newSender(to sdk.SpanExporter, log *slog.Logger) *sender {
	s := &sender{SpanExporter: to, log: log}
	s.open, s.abandon = context.WithCancel(context.Background())
	return s
}

// admit says whether one more span may be ended, which hands it over.
func (s *sender) admit() bool {
	if s.waiting.Add(1) > maxQueued {
		s.waiting.Add(-1)
		s.lose(1, errFull)
		return false
	}
	return true
}

// ExportSpans implements the exporter for the library's batches. It always
// succeeds: what fails is told here.
func (s *sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer s.waiting.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.open, cancel)()
	if err := s.SpanExporter.ExportSpans(ctx, spans); err != nil {
		s.lose(len(spans), err)
	}
	return nil
}

func (s *sender) lose(n int, why error) {
	s.mu.Lock()
	s.lost, s.why = s.lost+n, why
	due := time.Since(s.told) >= tellEvery
	s.mu.Unlock()
	if due {
		s.tell()
	}
}

// tell logs what was lost since the last time.
func (s *sender) tell() {
	s.mu.Lock()
	n, why := s.lost, s.why
	s.lost, s.told = 0, time.Now()
	s.mu.Unlock()
	if n > 0 {
		s.log.Warn("spans were lost", "spans", n, "error", why.Error())
	}
}

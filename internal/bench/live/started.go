package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Start is an engine that a System starts, and ends when it is closed.
type Start struct {
	// URL is where it answers GET /health with 200 once it is ready.
	URL *url.URL
	// Command is given to sh -c. What it starts must not leave its process group.
	Command string
}

const (
	// readyEvery is how often an engine is asked whether it is ready, on the clock.
	readyEvery = 200 * time.Millisecond
	// foundWithin is how long a gateway may take to find an engine that is ready.
	foundWithin = time.Minute
	// endWithin is how long a command may take to end when it is told to, before it
	// is killed: vLLM needs some seconds to let go of its cards.
	endWithin = 20 * time.Second
)

// errStop is the cause of a context whose engine is to end.
var errStop = errors.New("stopped")

// startedEngine is an engine that the System has started. Its methods are for the
// System's goroutine.
type startedEngine struct {
	Start
	log  string // path of the file with its output
	warn func(string)

	life   *life
	loaded bool // there was a step in this life
	killed bool // by an incident, and not yet back
}

// life is one run of the command.
type life struct {
	cancel context.CancelCauseFunc
	began  chan struct{} // closed when nothing of the one before is left
	ended  chan struct{} // closed when nothing of this one is
}

// begin runs the command once more, when nothing is left of its run before.
func (e *startedEngine) begin(running *sync.WaitGroup) {
	before := e.life
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &life{cancel: cancel, began: make(chan struct{}), ended: make(chan struct{})}
	e.life, e.loaded, e.killed = l, false, false
	running.Go(func() {
		defer close(l.ended)
		if before != nil {
			<-before.ended
		}
		close(l.began)
		if ctx.Err() != nil {
			return
		}
		if err := e.run(ctx); err != nil && ctx.Err() == nil {
			e.warn(fmt.Sprintf("engine %s has ended (%v); the last words in %s: %s", e.URL, err, e.log, lastLine(e.log)))
		}
	})
}

func (e *startedEngine) run(ctx context.Context) error {
	log, err := os.OpenFile(e.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := fmt.Fprintf(log, "warden bench starts: %s\n", e.Command); err != nil {
		return err
	}
	return runCommand(ctx, e.Command, log, endWithin)
}

// kill ends the engine as kill -9 does.
func (e *startedEngine) kill() {
	e.killed = true
	e.life.cancel(errKill)
}

func (e *startedEngine) restart(running *sync.WaitGroup) {
	e.life.cancel(errStop)
	e.begin(running)
}

// ready waits until the engine says that it is.
func (e *startedEngine) ready(ctx context.Context, client *http.Client) error {
	select {
	case <-e.life.began: // before, its predecessor might answer
	case <-ctx.Done():
	}
	for {
		if ctx.Err() == nil && healthy(ctx, client, e.URL) {
			return nil
		}
		select {
		case <-time.After(readyEvery):
		case <-e.life.ended:
			return fmt.Errorf("engine %s has ended: its output is in %s", e.URL, e.log)
		case <-ctx.Done():
			return fmt.Errorf("engine %s is not ready: %w; its output is in %s", e.URL, context.Cause(ctx), e.log)
		}
	}
}

func healthy(ctx context.Context, client *http.Client, base *url.URL) bool {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("health").String(), nil)
	if err != nil {
		return false
	}
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// lastLine is the last one of a file that holds something.
func lastLine(path string) string {
	const tail = 4 << 10
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data[max(len(data)-tail, 0):])
	return string(bytes.ToValidUTF8(data[bytes.LastIndexByte(data, '\n')+1:], nil))
}

// startEngines starts those of the options. Each has its output in a file of
// its own.
func (s *System) startEngines(ctx context.Context) error {
	if len(s.o.Start) == 0 {
		return nil
	}
	if err := os.MkdirAll(s.o.Logs, 0o777); err != nil {
		return fmt.Errorf("folder of the engines' output: %w", err)
	}
	for _, start := range s.o.Start {
		if c, err := s.o.Dial(ctx, "tcp", start.URL.Host); err == nil {
			c.Close()
			return fmt.Errorf("engine %s: something listens there already: end it, or measure it without starting it", start.URL)
		}
	}
	for _, start := range s.o.Start {
		name := strings.NewReplacer(":", "-", "[", "", "]", "").Replace(start.URL.Host) + ".log"
		e := &startedEngine{Start: start, log: filepath.Join(s.o.Logs, name), warn: s.o.Warn}
		e.begin(&s.lives)
		s.started = append(s.started, e)
	}
	return s.awaitStarted(ctx)
}

// awaitStarted waits until all started engines are ready, and the gateway has found
// that out.
func (s *System) awaitStarted(ctx context.Context) error {
	if len(s.started) == 0 {
		return nil
	}
	s.status.await(true)
	defer s.status.await(false)
	limited, cancel := context.WithTimeoutCause(ctx, s.o.StartWithin, fmt.Errorf("it was given %v", s.o.StartWithin))
	defer cancel()
	for _, e := range s.started {
		if err := e.ready(limited, s.plain); err != nil {
			return err
		}
	}
	if s.gateway == nil {
		return nil
	}
	ctx, cancelSearch := context.WithTimeout(ctx, foundWithin)
	defer cancelSearch()
	for {
		model, err := s.gateway.look(ctx, s.o.Model)
		if err == nil {
			err = s.notReady(model)
		}
		if err == nil {
			return nil
		}
		select {
		case <-time.After(readyEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// notReady names the first started engine that a gateway does not send requests
// to.
func (s *System) notReady(model modelView) error {
	var urls []string
	for _, r := range model.Replicas {
		urls = append(urls, r.URL)
	}
	for _, e := range s.started {
		found := false
		for i, p := range model.places() {
			if p.engine == nil || p.engine.Host != e.URL.Host {
				continue
			}
			found = true
			if state := model.Replicas[i].State; state != "ready" {
				return fmt.Errorf("engine %s is ready, but for the gateway replica %d there is %s", e.URL, i, state)
			}
		}
		if !found {
			return fmt.Errorf("engine %s was started, but the gateway has no replica there: those of model %s are at %s", e.URL, model.Name, strings.Join(urls, ", "))
		}
	}
	return nil
}

// startedAt is the started engine of a base URL, nil when it is somebody else's.
func (s *System) startedAt(u *url.URL) *startedEngine {
	for _, e := range s.started {
		if u != nil && e.URL.Host == u.Host {
			return e
		}
	}
	return nil
}

// endStarted ends all started engines and waits until nothing of them is left.
func (s *System) endStarted() {
	for _, e := range s.started {
		e.life.cancel(errStop)
	}
	s.lives.Wait()
}

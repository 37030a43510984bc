package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// consoles turns the test on; its value is how many are open.
const consoles = "LMWARDEN_CONSOLES"

// Open consoles cost a client nothing that it could measure. Slices of time with and
// without them take turns, so that both see the same neighbours on the machine.
//
//	LMWARDEN_CONSOLES=50 go test -run TestOpenConsoles -v ./browser
func TestOpenConsoles(t *testing.T) {
	n := 0
	if _, err := fmt.Sscan(os.Getenv(consoles), &n); err != nil || n < 1 {
		t.Skipf("takes a minute; set %s=50", consoles)
	}
	const rounds, length = 16, 3 * time.Second
	b := newBox(t, 0, "--data", t.TempDir())
	var took, cpu [2][]float64 // without and with consoles: a turn's ms, the gateway's CPU share
	for slice := range rounds {
		with := slice % 2
		ctx, stop := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		if with == 1 {
			for i := range n {
				watching.Go(func() {
					b.watch(ctx, t, []string{"/", "/models/" + model, "/conversations"}[i%3], time.Duration(i)*time.Second/time.Duration(n))
				})
			}
		}
		before, began := b.cpu(t), time.Now()
		took[with] = append(took[with], b.turnsOf(t, slice, length)...)
		cpu[with] = append(cpu[with], (b.cpu(t)-before)/time.Since(began).Seconds())
		stop()
		watching.Wait()
	}
	quiet, watched := median(took[0]), median(took[1])
	t.Logf("a turn takes %.2f ms (%d turns), with %d consoles %.2f ms (%d turns): ratio %.3f; the gateway uses %.1f%% of a core, with consoles %.1f%%",
		quiet, len(took[0]), n, watched, len(took[1]), watched/quiet, 100*median(cpu[0]), 100*median(cpu[1]))
	if watched > 1.1*quiet {
		t.Errorf("consoles make a turn take %.2f times as long", watched/quiet)
	}
}

// watch asks for a page as its script does until ctx ends.
func (b *box) watch(ctx context.Context, t *testing.T, path string, after time.Duration) {
	select {
	case <-time.After(after):
	case <-ctx.Done():
	}
	for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.Admin+path, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("X-Warden-Refresh", "1")
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if ctx.Err() == nil && (err != nil || res.StatusCode != http.StatusOK) {
			t.Errorf("%s: %v", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// turnsOf has twenty turns of ten conversations begin each second, for a time, and
// returns what each took in milliseconds.
func (b *box) turnsOf(t *testing.T, slice int, length time.Duration) []float64 {
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		took []float64
	)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range int(length / (50 * time.Millisecond)) {
		<-tick.C
		all.Go(func() {
			began := time.Now()
			if _, err := b.turn(t.Context(), fmt.Sprintf("slice-%d-%d", slice, i%10), []message{{"user", strings.Repeat("look at this ", 100)}}); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, float64(time.Since(began).Microseconds())/1000)
		})
	}
	all.Wait()
	return took
}

// cpu is how many seconds the gateway was on the CPU.
func (b *box) cpu(t *testing.T) (seconds float64) {
	t.Helper()
	for line := range strings.Lines(text(t, b.Admin+"/metrics")) {
		if _, err := fmt.Sscanf(line, "process_cpu_seconds_total %g", &seconds); err == nil {
			return seconds
		}
	}
	t.Fatal("the metrics hold no process_cpu_seconds_total")
	return 0
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

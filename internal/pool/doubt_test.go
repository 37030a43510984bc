package pool

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// What a dying vLLM cuts short on this route looks finished to the last byte.
func TestAnswersThatEndedJustBeforeADeathAreInDoubt(t *testing.T) {
	deaths := map[string]func(p *Pool, l *Lease){
		"another answer is aborted": func(p *Pool, l *Lease) { l.Failed(ErrAborted) },
		"a connection is refused":   func(p *Pool, l *Lease) { l.Failed(errRefused) },
		"the probe fails":           func(p *Pool, l *Lease) { p.Observe(0, bad(info(1, "m"), engine.Down)) },
	}
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				p, err := New(Options{Name: "m", Servers: []Server{{URL: "a"}, {URL: "b"}}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				probe(p)
				other := acquire(t, p, pinned(1, 0))
				answer := func(id string, unmarked bool, replica int) {
					r := pinned(2, replica)
					r.ID = id
					l := acquire(t, p, r)
					l.FirstByte()
					if unmarked {
						l.Unmarked()
					}
					l.End(routing.Outcome{OK: true})
				}
				answer("long-ago", true, 0)
				time.Sleep(6 * time.Second)
				answer("in-doubt", true, 0)
				answer("marked", false, 0)
				answer("elsewhere", true, 1)
				time.Sleep(5 * time.Second)
				die(p, other)
				p.Observe(0, bad(info(1, "m"), engine.Down))
				other.End(routing.Outcome{})
				if n := strings.Count(log.String(), "may be cut short"); n != 1 || !strings.Contains(log.String(), "request_id=in-doubt") {
					t.Errorf("log:\n%s", log.String())
				}
				if trouble := p.View().Servers[0].Error; !strings.Contains(trouble, "one answer ended shortly before") {
					t.Errorf("the page says %q", trouble)
				}
				probe(p)
				if trouble := p.View().Servers[0].Error; trouble != "" {
					t.Errorf("after its return the page says %q", trouble)
				}
			})
		})
	}
}

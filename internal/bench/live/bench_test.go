package live

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"lmwarden/internal/bench"
)

// The client must not be what is measured: with 500 streams of 20 pieces a second
// on one core it adds at most a millisecond to half of the first tokens. The
// server, a process of its own, tells in its first piece how long it took. Of
// several rounds the best counts: what else runs on the machine only adds.
func BenchmarkFirstTokensAmong500Streams(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newSystem(b, mustURL(b, startFixedDelayServer(b)), nil)
	const streams, rounds = 500, 4
	for range b.N {
		added := make([][]time.Duration, rounds)
		left := streams
		var ask func(session uint64, round int)
		ask = func(session uint64, round int) {
			if round == rounds {
				left--
				return
			}
			s.Send(bench.Request{Session: session, Turn: question(2000)}, func(r bench.Result) {
				answers := s.conversations[session].answers
				var took time.Duration
				if _, err := fmt.Sscan(answers[len(answers)-1], (*int64)(&took)); err != nil || r.End != bench.Finished {
					b.Errorf("%s %s: %v", r.End, r.Error, err)
				}
				added[round] = append(added[round], r.Token-r.Sent-took)
				ask(session, round+1)
			})
		}
		for i := range uint64(streams) {
			s.After(time.Duration(i)*pieces*pieceEvery/streams, func() { ask(i+1, 0) })
		}
		if err := s.Run(context.Background(), maxWait, func() bool { return left == 0 }); err != nil {
			b.Fatal(err)
		}
		s.Cut()
		p50, p90 := time.Duration(maxWait), time.Duration(maxWait)
		for _, round := range added {
			slices.Sort(round)
			p50, p90 = min(p50, round[streams/2]), min(p90, round[streams*9/10])
		}
		b.ReportMetric(1000*p50.Seconds(), "added-p50-ms")
		b.ReportMetric(1000*p90.Seconds(), "added-p90-ms")
		if p50 > time.Millisecond {
			b.Errorf("half of the first tokens came more than %v late, want at most 1ms", p50)
		}
	}
}

const (
	serverEnv  = "LMWARDEN_LIVE_FIXED_DELAY_SERVER"
	fixedDelay = 200 * time.Millisecond
	pieces     = 40
	pieceEvery = 50 * time.Millisecond
)

// startFixedDelayServer runs this binary as a server until the test ends.
func startFixedDelayServer(t testing.TB) string {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), serverEnv+"=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.StdinPipe() // its end ends the server
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line[:len(line)-1]
}

func fixedDelayServer() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("http://%s\n", l.Addr())
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			_, _ = io.Copy(io.Discard, r.Body)
			out := &stream{w: w}
			out.begin()
			for i := range pieces {
				due := began.Add(fixedDelay + time.Duration(i)*pieceEvery)
				time.Sleep(time.Until(due))
				if i == 0 {
					out.say(fmt.Sprintf("%d ", time.Since(began).Nanoseconds()))
					continue
				}
				out.say("word ")
			}
			out.end(1000, 500, pieces)
		}))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

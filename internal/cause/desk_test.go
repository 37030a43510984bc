package cause

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"lmwarden/internal/llmapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is asked for is done in its order, up to the end; each body is given back,
// also those for which there is no room.
func TestADesk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDesk()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { d.Run(ctx); close(ended) }()

		given := 0
		done := func([]byte) { given++ }
		var told []Cause
		tell := func(v Verdict) { told = append(told, v.Cause) }
		send := func(text string) {
			body := []byte(`{"messages":[{"role":"user","content":"` + text + `"}]}`)
			f, err := llmapi.Parse(llmapi.RouteChat, body)
			if err != nil {
				t.Fatal(err)
			}
			turn := before()
			turn.Sent, turn.Cached = PromptOf(f), 0
			turn.Sent.Read = d.Read(Key{1}, f, body, done)
			d.Judge(Key{1}, turn, Cache{}, func(v Verdict) {
				tell(v)
				if v.Cause == Changed && v.At.Offset < 0 {
					t.Errorf("no place: %+v", v.At)
				}
			})
		}
		send("a")
		send("b")
		synctest.Wait()
		if given != 0 {
			t.Error("somebody waited for the reading")
		}
		stop()
		<-ended
		if given != 2 || len(told) != 2 || told[0] != First || told[1] != Changed {
			t.Errorf("%d bodies, %v", given, told)
		}

		if r := d.Read(Key{1}, nil, make([]byte, maxBodies+1), done); r != nil || given != 3 {
			t.Errorf("a body without room: %v, %d given back", r, given)
		}
		for range maxJobs + 1 {
			d.Judge(Key{1}, before(), Cache{}, tell)
		}
		if len(told) != 3 || told[2] != "" {
			t.Errorf("%d turns were judged at once", len(told)-2)
		}
	})
}

// Bodies that wait take memory, so where they are many they do not wait for the tick.
func TestADeskBeginsAtOnceWithManyBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDesk()
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { d.Run(ctx) })
		given := 0
		read := func(size int) {
			body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("a", size) + `"}]}`)
			f, err := llmapi.Parse(llmapi.RouteChat, body)
			if err != nil {
				t.Fatal(err)
			}
			d.Read(Key{1}, f, body, func([]byte) { given++ })
			synctest.Wait()
		}
		read(manyBodies / 2)
		if given != 0 {
			t.Error("one is many")
		}
		read(manyBodies / 2)
		if given != 2 {
			t.Errorf("%d of 2 were read", given)
		}
		read(manyBodies / 2)
		if given != 2 {
			t.Error("those that were read count still")
		}
		stop()
		running.Wait()
	})
}

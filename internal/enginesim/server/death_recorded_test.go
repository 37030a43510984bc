package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ending is how a client saw its answer end when something happened to the server.
type ending struct {
	status   int
	at       time.Duration // after the incident
	open     bool          // it did not end
	complete bool          // for HTTP
	kept     bool          // the connection was open at that moment
	events   []string      // of a stream: all, or the last ones that the recording shows
	header   []string
	body     string // of anything else
}

// recordedEndings reads the clients of the n-th incident in a recording, by title.
func recordedEndings(t *testing.T, file string, n int) map[string]ending {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	event := strings.Split(string(raw), "what each client saw:\n")[n+1]
	event, _, _ = strings.Cut(event, "\napi process alive")
	all := map[string]ending{}
	for _, section := range strings.Split("\n"+event, "\n--- ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		if title, open := strings.CutSuffix(title, ": still open"); open {
			all[title] = ending{open: true}
			continue
		}
		all[title] = readEnding(t, text)
	}
	if len(all) < 5 {
		t.Fatalf("testdata/%s: %d clients", file, len(all))
	}
	return all
}

func readEnding(t *testing.T, text string) ending {
	t.Helper()
	var e ending
	m := regexp.MustCompile(`^ +HTTP (\d+); ended at \+([0-9.]+) s; connection: (\w+); complete: (\w+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no ending in %.80q", text)
	}
	e.status, _ = strconv.Atoi(m[1])
	e.at, _ = time.ParseDuration(m[2] + "s")
	e.kept, e.complete = m[3] == "kept", m[4] == "True"
	if _, response, ok := strings.Cut(text, "\n    HTTP/1.1 "); ok {
		lines := strings.Split(strings.ReplaceAll(response, "\n    ", "\n"), "\n")
		blank := slices.Index(lines, "")
		e.header, e.body = lines[1:blank], lines[blank+1]
		return e
	}
	for _, m := range regexp.MustCompile(`(?m)^ +\+-?[0-9.]+ s '(.*)'$`).FindAllStringSubmatch(text, -1) {
		e.events = append(e.events, strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\'`, `'`).Replace(m[1]))
	}
	return e
}

// watch sends a request and follows its answer until a minute after begin, the time of the incident.
func (n *network) watch(raw []byte, begin time.Time) (ending, error) {
	c := n.dial()
	defer c.Close()
	c.SetDeadline(begin.Add(time.Minute))
	go c.Write(raw)
	in := bufio.NewReader(c)
	r, err := http.ReadResponse(in, nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ending{open: true}, nil
	} else if err != nil {
		return ending{}, err
	}
	e := ending{status: r.StatusCode}
	for name := range r.Header {
		e.header = append(e.header, strings.ToLower(name)+": "+r.Header.Get(name))
	}
	body, err := io.ReadAll(r.Body)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ending{open: true}, nil
	}
	e.at, e.complete, e.body = time.Since(begin), err == nil, string(body)
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err = in.ReadByte()
	e.kept = errors.Is(err, os.ErrDeadlineExceeded)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		e.events = strings.Split(strings.TrimSuffix(e.body, "\n\n"), "\n\n")
		e.body = ""
	}
	return e, nil
}

// comparable is an ending with all that differs from run to run masked.
func (e ending) comparable(t *testing.T) reply {
	t.Helper()
	r := reply{Status: fmt.Sprint(e.status, " complete ", e.complete, " kept ", e.kept, " open ", e.open)}
	if len(e.events) > 0 {
		r.Headers = []string{"content-type: text/event-stream; charset=utf-8"} // so that events are expected
		r.content(t, strings.Join(e.events, "\n\n"))
		r.Headers = nil
		for i := range r.Events {
			r.Events[i] = maskCounts(r.Events[i])
		}
		return r
	}
	for _, line := range e.header {
		// The flag behind that header, and the one behind the metrics, is not simulated.
		if name, value, _ := strings.Cut(line, ": "); name != "x-request-id" {
			r.header(name, value)
		}
	}
	r.content(t, e.body)
	r.Body = maskCounts(r.Body)
	return r
}

// maskCounts masks what depends on the moment at which an answer ended.
func maskCounts(text string) string {
	text = regexp.MustCompile(`"(output_tokens|completion_tokens|total_tokens)":\d+`).ReplaceAllString(text, `"$1":N`)
	text = regexp.MustCompile(`"sequence_number":\d+`).ReplaceAllString(text, `"sequence_number":"ID"`)
	return regexp.MustCompile(`"metrics":\{.*?\}`).ReplaceAllString(text, `"metrics":null`)
}

// elided compares an event that the recording does not show whole: its name, and its end if that is there.
func elided(recorded, got string) bool {
	name, data, _ := strings.Cut(recorded, " {")
	if !strings.HasPrefix(got, name+" {") {
		return false
	}
	_, end, ok := strings.Cut(data, " ... ")
	if !ok {
		return true
	}
	return strings.HasSuffix(got, end[strings.IndexByte(end, '"'):])
}

// endingRequest is the request of a client in the recordings. The prompts are as long as the recorded ones.
func endingRequest(title string, unique, most int) []byte {
	text := fmt.Sprintf("%02d%s", unique, strings.Repeat("x", 30))
	dialect, _, _ := strings.Cut(title, " ")
	rank := "0"
	if strings.Contains(title, "rank 1") {
		rank = "1"
	}
	stream := !strings.Contains(title, "non-stream")
	if strings.Contains(title, "1500 tokens") {
		most = 1500
	}
	messages := func(text string) string {
		return fmt.Sprintf(`"messages": [{"role": "user", "content": "%s"}], "max_tokens": %d`, text, most)
	}
	at := map[string][2]string{
		"chat":        {"/v1/chat/completions", messages("x" + text)},
		"messages":    {"/v1/messages", messages(text)},
		"completions": {"/v1/completions", fmt.Sprintf(`"prompt": "%s", "max_tokens": %d`, text, most)},
		"responses":   {"/v1/responses", fmt.Sprintf(`"input": "%s", "max_output_tokens": %d`, text, most)},
	}[dialect]
	return post(at[0], fmt.Sprintf(`{"model": "tiny", "temperature": 0, %s, "stream": %t}`, at[1], stream), rankHeader+": "+rank)
}

// incident is what happened in a recording.
type incident struct {
	file    string
	number  int // in the file
	version string
	failure string
	tokens  int           // that the clients asked for
	before  time.Duration // how long they had been there
	slack   time.Duration // of the times, which the recorded machine was too busy to keep
}

// test lets it happen to a server with the recorded clients, and expects them to see what the
// recorded ones saw, at about the same time.
func (e incident) test(t *testing.T) {
	t.Parallel()
	want := recordedEndings(t, e.file, e.number)
	o := recorded(t)
	o.Version = e.version
	o.ResponsesRank = true // of those that ignore it, all recorded ones happened to be on rank 0
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, o)
		begin := time.Now().Add(e.before)
		var watching sync.WaitGroup
		for i, title := range slices.Sorted(maps.Keys(want)) {
			watching.Go(func() {
				got, err := n.watch(endingRequest(title, i, e.tokens), begin)
				if err != nil {
					t.Errorf("%s: %v", title, err)
					return
				}
				if late := got.at - want[title].at; late.Abs() > e.slack {
					t.Errorf("%s: ended after %s, recorded %s", title, got.at, want[title].at)
				}
				compareEndings(t, title, want[title], got)
			})
		}
		time.Sleep(time.Until(begin))
		if err := n.server.Fail(e.failure); err != nil {
			t.Error(err)
		}
		watching.Wait()
	})
}

func compareEndings(t *testing.T, title string, want, got ending) {
	recorded, simulated := want.comparable(t), got.comparable(t)
	simulated.Events = simulated.Events[max(0, len(simulated.Events)-len(recorded.Events)):]
	for i, e := range recorded.Events {
		if i < len(simulated.Events) && e != simulated.Events[i] && !json.Valid([]byte(e[strings.IndexByte(e, ' ')+1:])) && elided(e, simulated.Events[i]) {
			recorded.Events[i] = simulated.Events[i]
		}
	}
	if diff := cmp.Diff(recorded, simulated); diff != "" {
		t.Errorf("%s (-recorded +simulated)\n%s", title, diff)
	}
}

func TestDeathOfAnEngineAsRecorded(t *testing.T) {
	incident{
		file: "engine-death.txt", number: 0, version: "0.32.0", failure: "die,rank=1",
		tokens: 6000, before: time.Second, slack: 400 * time.Millisecond,
	}.test(t)
}

func TestDeathOfAnEngineThatLeavesAShellAsRecorded(t *testing.T) {
	incident{
		file: "engine-death.txt", number: 1, version: "0.32.0", failure: "die,rank=1,shell",
		tokens: 6000, before: time.Second, slack: 400 * time.Millisecond,
	}.test(t)
}

func TestDeathOfAnEngineOf33AsRecorded(t *testing.T) {
	incident{
		file: "engine-death-0.33.0.txt", number: 0, version: "0.33.0", failure: "die,rank=1",
		tokens: 8000, before: time.Second, slack: 400 * time.Millisecond,
	}.test(t)
}

func TestStopAsRecorded(t *testing.T) {
	incident{
		file: "sigterm.txt", number: 0, version: "0.32.0", failure: "stop",
		tokens: 7000, before: time.Second, slack: time.Second,
	}.test(t)
}

func TestStopWithATimeoutAsRecorded(t *testing.T) {
	incident{
		file: "sigterm.txt", number: 1, version: "0.32.0", failure: "stop,timeout=8s",
		tokens: 7000, before: 3300 * time.Millisecond, slack: time.Second,
	}.test(t)
}

package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// served runs do and tells which engines got prompt tokens by it, and how many.
func (n *network) served(t *testing.T, do func()) map[string]float64 {
	t.Helper()
	count := func() []float64 {
		// The recordings scraped the metrics here, which took as long. It matters: the counts that the
		// balancer sees are as old as that.
		time.Sleep(30 * time.Millisecond)
		var counts []float64
		stats, _ := n.server.process().engine.snapshot()
		for _, s := range stats {
			counts = append(counts, float64(s.PromptTokens))
		}
		return counts
	}
	before := count()
	do()
	delta := map[string]float64{}
	for engine, after := range count() {
		if d := after - before[engine]; d != 0 {
			delta[strconv.Itoa(engine)] = d
		}
	}
	return delta
}

func only(engines map[string]float64) string {
	if len(engines) != 1 {
		return fmt.Sprint(engines)
	}
	for engine := range engines {
		return engine
	}
	return ""
}

// probe is a small request on one of the four routes, with a prompt of its own.
func probe(route string, stream bool, unique int, headers ...string) []byte {
	text := fmt.Sprintf("rank probe %048d", unique)
	messages := fmt.Sprintf(`"messages": [{"role": "user", "content": "%s"}], "max_tokens": 2`, text)
	paths := map[string][2]string{
		"chat":        {"/v1/chat/completions", messages},
		"messages":    {"/v1/messages", messages},
		"completions": {"/v1/completions", fmt.Sprintf(`"prompt": "%s", "max_tokens": 2`, text)},
		"responses":   {"/v1/responses", fmt.Sprintf(`"input": "%s", "max_output_tokens": 2`, text)},
	}
	at := paths[route]
	return post(at[0], fmt.Sprintf(`{"model": "tiny", %s, "stream": %t}`, at[1], stream), headers...)
}

// testRankTable sends what a recorded table says was sent and expects the engines that it names.
func testRankTable(t *testing.T, o Options, file string) {
	raw, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^(chat|completions|responses|messages) +(False|True) +(0|1|none) +([01](?: [01]){5})$`).FindAllStringSubmatch(string(raw), -1)
	if len(rows) != 24 {
		t.Fatalf("testdata/%s has %d rows, want 24", file, len(rows))
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, o)
		unique := 0
		for _, row := range rows {
			var headers []string
			if row[3] != "none" {
				headers = []string{"X-data-parallel-rank: " + row[3]}
			}
			var engines []string
			for range 6 {
				unique++
				engines = append(engines, only(n.served(t, func() {
					n.send(t, probe(row[1], row[2] == "True", unique, headers...))
				})))
			}
			if got := strings.Join(engines, " "); got != row[4] {
				t.Errorf("%s, stream %s, header %s: engines %s, recorded %s", row[1], row[2], row[3], got, row[4])
			}
		}
	})
}

func TestRankHeaderPerRouteAsRecorded(t *testing.T) {
	t.Parallel()
	testRankTable(t, recorded(t), "rank-header.txt")
}

func TestRankHeaderPerRouteOf33AsRecorded(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.Version = "0.33.0"
	testRankTable(t, o, "vllm-0.33.0.txt")
}

func TestResponsesRankOnAnOldVersion(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.ResponsesRank = true
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, o)
		for i := range 4 {
			if got := only(n.served(t, func() { n.send(t, probe("responses", false, i, "X-data-parallel-rank: 1")) })); got != "1" {
				t.Errorf("request %d went to engine %s, want 1", i, got)
			}
		}
	})
}

func TestOddRankHeadersAsRecorded(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "rank-header.txt"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^('.*'|header sent twice \('.', '.'\):|lower/upper case mix, value 1:) +((?:(?:200:[01]|400:) ?){4})$`).FindAllStringSubmatch(string(raw), -1)
	if len(rows) != 17 {
		t.Fatalf("%d rows, want 17", len(rows))
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		unique := 0
		for _, row := range rows {
			var headers []string
			switch twice := regexp.MustCompile(`'(.)', '(.)'`).FindStringSubmatch(row[1]); {
			case twice != nil:
				headers = []string{"X-data-parallel-rank: " + twice[1], "X-data-parallel-rank: " + twice[2]}
			case strings.HasPrefix(row[1], "'"):
				headers = []string{"X-data-parallel-rank: " + strings.Trim(row[1], "'")}
			default:
				headers = []string{"x-DATA-parallel-RANK: 1"}
			}
			var got []string
			for range 4 {
				unique++
				var status string
				engines := n.served(t, func() { status = n.send(t, probe("chat", false, unique, headers...)).Status })
				code := strings.Fields(status)[1]
				if len(engines) == 0 {
					got = append(got, code+":")
				} else {
					got = append(got, code+":"+only(engines))
				}
			}
			if got := strings.Join(got, " "); got != strings.TrimSpace(row[2]) {
				t.Errorf("%s: %s, recorded %s", row[1], got, row[2])
			}
		}
	})
}

func TestSeveralPromptsOfOneRequestAsRecorded(t *testing.T) {
	t.Parallel()
	three := func(unique int) string {
		text := fmt.Sprintf("%066d", unique) // 66 tokens, as recorded
		return fmt.Sprintf(`{"model": "tiny", "prompt": ["a%[1]s", "b%[1]s", "c%[1]s"], "max_tokens": 2}`, text[1:])
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		pinned := n.served(t, func() { n.send(t, post("/v1/completions", three(1), "X-data-parallel-rank: 1")) })
		if diff := cmp.Diff(map[string]float64{"1": 198}, pinned); diff != "" {
			t.Error(diff)
		}
		free := n.served(t, func() { n.send(t, post("/v1/completions", three(2))) })
		if diff := cmp.Diff(map[string]float64{"0": 132, "1": 66}, free); diff != "" {
			t.Error(diff)
		}
	})
}

// Only 0.33 looks at the header on this route, and it ends the stream in a way of its own.
func TestResponsesStreamOfAnUnknownRankIsCut(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.Version = "0.33.0"
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, o)
		raw := n.rawReply(t, probe("responses", true, 1, "X-data-parallel-rank: 2"))
		if !bytes.HasPrefix(raw, []byte("HTTP/1.1 200 OK\r\n")) || bytes.Contains(raw, []byte("\r\n0\r\n")) {
			t.Errorf("want a 200 without the last chunk, got %q", raw)
		}
		events := regexp.MustCompile(`event: \S+`).FindAllString(string(raw), -1)
		if diff := cmp.Diff([]string{"event: response.created", "event: response.in_progress"}, events); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPythonInt(t *testing.T) {
	t.Parallel()
	type result struct {
		N     int
		Shown string
		OK    bool
	}
	big := "123456789012345678901234567890"
	for in, want := range map[string]result{
		"0": {0, "0", true}, "-0": {0, "0", true}, "+07": {7, "7", true}, "\t3 ": {3, "3", true}, "1_000": {1000, "1000", true},
		"-12": {-12, "-12", true}, big: {1<<63 - 1, big, true}, "-" + big: {-1 << 63, "-" + big, true},
		"": {}, " ": {}, "-": {}, "+-1": {}, "1__0": {}, "_1": {}, "1_": {}, "1.0": {}, "1e3": {}, "0x1": {}, "1 2": {}, "１": {},
	} {
		var got result
		got.N, got.Shown, got.OK = pythonInt(in)
		if got != want {
			t.Errorf("pythonInt(%q) = %v, want %v", in, got, want)
		}
	}
}

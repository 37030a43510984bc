package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// talk is a conversation as the recording script led it: of each answer the client sends back the
// first character and then something else, since the recorded answers were no valid text.
type talk struct {
	n        *network
	name     string
	messages []map[string]string
}

// counted are a turn's prompt tokens, and those of them found in the cache and newly put there.
type counted struct{ Prompt, Cached, Created int }

// newTalk begins a conversation that shares no block with one of another name.
func newTalk(n *network, name string) *talk { return &talk{n: n, name: name} }

// turn asks once more, so that the prompt has that many tokens, and returns the usage.
func (k *talk) turn(t *testing.T, prompt int, headers ...string) counted {
	t.Helper()
	// ChatML takes 8 tokens around a user's text and 13 around an answer; the last answer's
	// beginning is in the prompt already.
	size := 11
	for _, m := range k.messages {
		size += len("<") + len(m["role"]) + len("\n") + len(m["content"]) + len(">\n")
	}
	text := fmt.Sprintf("%s turn %d ", k.name, len(k.messages)/2)
	text += strings.Repeat("q", prompt-size-8-len(text)) // panics when there is no room for a turn
	k.messages = append(k.messages, map[string]string{"role": "user", "content": text})
	u, answer := k.send(t, "", headers...)
	k.messages = append(k.messages, map[string]string{"role": "assistant", "content": answer[:1] + "#######"})
	return u
}

// again sends the last turn once more.
func (k *talk) again(t *testing.T, salt string, headers ...string) counted {
	t.Helper()
	last := len(k.messages) - 1
	repeat := talk{n: k.n, messages: k.messages[:last]}
	u, _ := repeat.send(t, salt, headers...)
	return u
}

func (k *talk) send(t *testing.T, salt string, headers ...string) (counted, string) {
	t.Helper()
	body := map[string]any{"model": "tiny", "messages": k.messages, "max_tokens": 8}
	if salt != "" {
		body["cache_salt"] = salt
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	a := k.n.chat(t, string(raw), headers...)
	return a.counted(), a.Choices[0].Message.Content
}

// chatAnswer is what the tests read of a chat completion.
type chatAnswer struct {
	Choices []struct {
		Message struct {
			Content   string
			ToolCalls []struct {
				ID       string
				Type     string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Text         string
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached  int `json:"cached_tokens"`
			Created int `json:"created_cache_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func (a chatAnswer) counted() counted {
	return counted{a.Usage.PromptTokens, a.Usage.Details.Cached, a.Usage.Details.Created}
}

func (n *network) chat(t *testing.T, body string, headers ...string) chatAnswer {
	t.Helper()
	return fetch[chatAnswer](t, n, "/v1/chat/completions", body, headers...)
}

// fetch posts a body that must be answered with 200, and decodes the answer.
func fetch[T any](t *testing.T, n *network, path, body string, headers ...string) T {
	t.Helper()
	r, raw := n.roundTrip(t, post(path, body, headers...))
	var v T
	if r.StatusCode != 200 {
		t.Fatalf("%s: %s %s", path, r.Status, raw)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v in %s", path, err, raw)
	}
	return v
}

func onRank(rank int) string { return "X-data-parallel-rank: " + strconv.Itoa(rank) }

func recordedText(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// numbers are all decimal numbers of a text.
func numbers(text string) []int {
	var all []int
	for _, digits := range regexp.MustCompile(`\d+`).FindAllString(text, -1) {
		n, _ := strconv.Atoi(digits)
		all = append(all, n)
	}
	return all
}

// recordedLines are the lines of a text that match the pattern; there must be that many.
func recordedLines(t *testing.T, text, pattern string, count int) []string {
	t.Helper()
	lines := regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllString(text, -1)
	if len(lines) != count {
		t.Fatalf("%d lines match %s, want %d", len(lines), pattern, count)
	}
	return lines
}

func TestPrefixCacheAsRecorded(t *testing.T) {
	t.Parallel()
	text := recordedText(t, "prefix-cache.txt")
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		expect := func(what string, want, got counted) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %+v, recorded %+v", what, got, want)
			}
		}

		k := newTalk(n, "six growing turns")
		for _, line := range recordedLines(t, text, `\d \d+ \d+ \d+ \d+ common=.*`, 6) {
			row := numbers(line)
			expect("turn "+line[:1], counted{row[1], row[2], row[3]}, k.turn(t, row[1], onRank(0)))
		}

		before, after, _ := strings.Cut(text, "/reset_prefix_cache")
		triple := `\(\d+, \d+, \d+\)`
		for _, line := range recordedLines(t, before, `(?:turn 6|with cache_salt|no salt).*`+triple, 7) {
			title, value, _ := strings.Cut(line, ": ")
			want := numbers(value)
			rank, salt := 0, ""
			if strings.Contains(title, "rank 1") {
				rank = 1
			}
			if _, quoted, ok := strings.Cut(title, `"`); ok {
				salt, _, _ = strings.Cut(quoted, `"`)
			}
			expect(line, counted{want[0], want[1], want[2]}, k.again(t, salt, onRank(rank)))
		}

		for _, line := range recordedLines(t, text, `\(\d+, \d+, \d+\) again \(\d+, \d+, \d+\)`, 5) {
			row := numbers(line)
			short := newTalk(n, strconv.Itoa(row[0])) // another text each time
			expect(line, counted{row[0], row[1], row[2]}, short.turn(t, row[0], onRank(0)))
			expect(line, counted{row[3], row[4], row[5]}, short.again(t, "", onRank(0)))
		}

		reply := string(n.rawReply(t, []byte("POST /reset_prefix_cache HTTP/1.1\r\nHost: vllm.test\r\nConnection: close\r\n\r\n")))
		if !strings.HasSuffix(reply, `{"success":true}`) {
			t.Errorf("reset: %q", reply)
		}
		for rank, line := range recordedLines(t, after, `(?:rank 1 after the reset: )?`+triple, 2) {
			want := numbers(line[strings.Index(line, "("):])
			expect("after the reset", counted{want[0], want[1], want[2]}, k.again(t, "", onRank(rank)))
		}
	})
}

func TestPrefixCacheOfTokenIDsAsRecorded(t *testing.T) {
	t.Parallel()
	text := recordedText(t, "prefix-cache.txt")
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		complete := func(ids []int, most int) chatAnswer {
			t.Helper()
			body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": ids, "max_tokens": most})
			if err != nil {
				t.Fatal(err)
			}
			return fetch[chatAnswer](t, n, "/v1/completions", string(body), onRank(0))
		}
		for _, line := range recordedLines(t, text, ` *\d+ \[\d+, \d+\]`, 10) {
			row := numbers(line)
			ids := slices.Repeat([]int{row[0]}, row[0]) // a text of its own for each length
			for time, want := range row[1:] {
				if a := complete(ids, 2); a.Usage.PromptTokens != row[0] || a.Usage.Details.Cached != want {
					t.Errorf("%d ids, time %d: %+v, recorded %d cached", row[0], time+1, a.Usage, want)
				}
			}
		}

		row := numbers(recordedLines(t, text, `prompt 140 cached 128`, 1)[0])
		ids := slices.Repeat([]int{7}, 40)
		generated := complete(ids, 100).Choices[0].Text
		for i := range len(generated) {
			ids = append(ids, int(generated[i]))
		}
		if a := complete(ids, 2); a.Usage.PromptTokens != row[0] || a.Usage.Details.Cached != row[1] {
			t.Errorf("prompt and answer as the next prompt: %+v, recorded %v", a.Usage, row)
		}
	})
}

func TestTwoIdenticalPromptsAtOnceAsRecorded(t *testing.T) {
	t.Parallel()
	row := numbers(recordedLines(t, recordedText(t, "prefix-cache.txt"), `\[\(664, \d+, \d+\), \(664, \d+, \d+\)\]`, 1)[0])
	want := map[counted]int{{row[0], row[1], row[2]}: 1, {row[3], row[4], row[5]}: 1}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		// A request keeps the engine busy, so that the two meet in its queue.
		var all sync.WaitGroup
		all.Go(func() { newTalk(n, "busy").turn(t, 3000, onRank(0)) })
		synctest.Wait()
		var mu sync.Mutex
		got := map[counted]int{}
		for range 2 {
			all.Go(func() {
				u := newTalk(n, "identical").turn(t, row[0], onRank(0))
				mu.Lock()
				defer mu.Unlock()
				got[u]++
			})
		}
		all.Wait()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-recorded +simulated)\n%s", diff)
		}
	})
}

func TestBalancerOfOneConversationAsRecorded(t *testing.T) {
	t.Parallel()
	text := recordedText(t, "balancer.txt")
	rows := recordedLines(t, text, ` +\d+ \[[01]\] +\d+ +\d+`, 24)
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.send(t, probe("chat", false, 0)) // the recorded one began with engine 1
		k := newTalk(n, "balanced")
		for i, line := range rows {
			row := numbers(line)
			var headers []string
			if i == 12 {
				k = newTalk(n, "pinned")
			}
			if i >= 12 {
				headers = []string{onRank(0)}
			}
			var u counted
			engine := only(n.served(t, func() { u = k.turn(t, row[2], headers...) }))
			if engine != strconv.Itoa(row[1]) || u.Prompt != row[2] || u.Cached != row[3] {
				t.Errorf("row %d: engine %s, %+v, recorded %v", i, engine, u, row[1:])
			}
		}
	})
}

func TestBalancerOfInterleavedConversationsAsRecorded(t *testing.T) {
	t.Parallel()
	text, _, _ := strings.Cut(recordedText(t, "balancer.txt"), "the plain default") // what follows had two API servers
	rows := recordedLines(t, text, `\d conversations strictly interleaved.*`, 4)
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.send(t, probe("chat", false, 0))
		for _, line := range rows {
			want := regexp.MustCompile(`'([01]{8})'`).FindAllStringSubmatch(line, -1)
			talks := make([]*talk, len(want))
			got := make([]string, len(want))
			for turn := range 8 {
				for i := range talks {
					if turn == 0 {
						talks[i] = newTalk(n, fmt.Sprintf("%d of %d", i, len(talks)))
					}
					got[i] += only(n.served(t, func() { talks[i].turn(t, 300+150*turn) }))
				}
			}
			for i := range want {
				if got[i] != want[i][1] {
					t.Errorf("%d conversations: number %d went to %s, recorded %s", len(want), i, got[i], want[i][1])
				}
			}
		}
	})
}

func TestBalancerOfConcurrentRequestsWithinTheRecorded(t *testing.T) {
	t.Parallel()
	burst := func(t *testing.T, n *network) map[string]float64 {
		return n.served(t, func() {
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() { n.send(t, probe("chat", false, i)) })
			}
			all.Wait()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		engines := burst(t, n)
		if engines["0"] != engines["1"] || len(engines) != 2 {
			t.Errorf("an idle server: %v, recorded 6 and 6 requests", engines)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		var long sync.WaitGroup
		for range 6 {
			long.Go(func() {
				n.send(t, post("/v1/chat/completions", `{"messages": [{"role": "user", "content": "long"}], "max_tokens": 500}`, onRank(0)))
			})
		}
		synctest.Wait()
		engines := burst(t, n)
		long.Wait()
		size := slices.Collect(maps.Values(engines))
		if share := engines["1"] / (size[0] + size[1]); share < 9./12 || share > 10./12 {
			t.Errorf("six pinned to engine 0: %v, recorded 9 or 10 of 12 on engine 1", engines)
		}
	})
}

package browser

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"lmwarden/e2e/internal/wardentest"
)

// What the tokens' drawing shows of the hour is what the engine counted: its prompts
// are the cached and the computed tokens, its answers the completion.
func TestTheTokensOfTheHourAreTheEngines(t *testing.T) {
	t.Parallel()
	b := newBox(t, 6, "--data", ":memory:")
	wardentest.WaitFor(t, patience, "turns", func() error {
		if b.turns.Load() < 60 {
			return errors.New("too few")
		}
		return nil
	})
	defer b.pause()()
	for _, group := range []string{"none", "replica", "client"} {
		wardentest.WaitFor(t, patience, "the history by "+group, func() error {
			type tokens struct{ Cached, Computed, Completion int }
			var shown tokens
			for _, s := range get[struct{ Series []tokens }](t, b.Admin+"/api/stats/tokens?range=1h&group="+group).Series {
				shown.Cached += s.Cached
				shown.Computed += s.Computed
				shown.Completion += s.Completion
			}
			c := counters(t, text(t, b.engine+"/metrics"))
			counted := tokens{
				c["vllm:prompt_tokens_cached_total"],
				c["vllm:prompt_tokens_total"] - c["vllm:prompt_tokens_cached_total"],
				c["vllm:generation_tokens_total"],
			}
			if shown != counted || shown.Cached == 0 || shown.Computed == 0 || shown.Completion == 0 {
				return fmt.Errorf("the chart has %+v, the engine counted %+v", shown, counted)
			}
			return nil
		})
	}
}

// counters sums an exposition's series by their name, over the ranks.
func counters(t *testing.T, exposition string) map[string]int {
	t.Helper()
	sums := map[string]int{}
	for lines := bufio.NewScanner(strings.NewReader(exposition)); lines.Scan(); {
		series, value, ok := strings.Cut(lines.Text(), "} ")
		name, _, labelled := strings.Cut(series, "{")
		if !ok || !labelled || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		sums[name] += int(v)
	}
	return sums
}

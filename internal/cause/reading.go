package cause

import "lmwarden/internal/llmapi"

// Reading is what the body of a request told beyond its facts: hashes of the pieces
// of its texts, and the first place at which it differs from the turn before.
type Reading struct {
	system, tools pieces
	messages      []pieces // as Prompt.Messages
	// at is the place, and since the turn that the body was compared with, by its
	// number in the book; 0 for none.
	at    Place
	since int64
}

// size is what a reading takes in bytes, at most: what it shares with earlier ones
// is counted.
func (r *Reading) size() int {
	if r == nil {
		return 0
	}
	const one = 32 // a pieces itself
	n := one*(len(r.messages)+2) + 4*(len(r.system.sums)+len(r.tools.sums))
	for i := range r.messages {
		n += 4 * len(r.messages[i].sums)
	}
	return n
}

// read makes the reading of a prompt from its body. What is known from the turn
// before is taken from there, so each text is read once. last is nil when there is
// none.
func read(r *Reading, last *Turn, f *llmapi.Facts, body []byte, c *cutter) {
	now, t := PromptOf(f), text{body, c}
	var known *Reading
	var place Place
	changed := false
	if last != nil && last.Sent.Read != nil {
		known = last.Sent.Read
		place, changed = parts(&last.Sent, &now)
	}
	// note looks for the first difference in the text that was just cut.
	note := func(name string, message int, was, is pieces, begin, end int) {
		if !changed || place.Part != name || place.Message != message {
			return
		}
		piece, shift, ok := part(was, is)
		if !ok {
			return
		}
		from, to := c.span(piece, shift, end)
		place.Byte, place.Offset, place.Within = int64(begin), int64(from-begin), int64(to-from)
	}
	if known != nil && last.Sent.System == now.System && last.Sent.Tools == now.Tools {
		r.system, r.tools = known.system, known.tools
	} else {
		var was Reading
		if known != nil {
			was = *known
		}
		if begin, end := t.system(f); end > 0 {
			r.system = c.pieces()
			note(PartSystem, 0, was.system, r.system, begin, end)
		}
		if begin, end := t.tools(f); end > 0 {
			r.tools = c.pieces()
			note(PartTools, 0, was.tools, r.tools, begin, end)
		}
	}
	r.messages = make([]pieces, len(f.Sent))
	for i, m := range f.Sent {
		var was pieces
		if known != nil && i < len(known.messages) {
			if was = known.messages[i]; last.Sent.Messages[i].Hash == m.Hash {
				r.messages[i] = was
				continue
			}
		}
		c.reset()
		end := t.value(m.At, true)
		r.messages[i] = c.pieces()
		note(PartMessage, i, was, r.messages[i], m.At, end)
	}
	r.at = place
}

// system cuts the leading system text: that of a field of its own, and the messages
// before the first that counts as one. It returns where the first of it begins and
// the last ends, end 0 when there is none.
func (t text) system(f *llmapi.Facts) (begin, end int) {
	t.cut.reset()
	take := func(i int) int {
		if end == 0 {
			begin = i
		}
		end = t.value(i, true)
		return end
	}
	t.top(f, func(key []byte, i int) int {
		switch string(key) {
		case "system", "instructions":
			return take(i)
		}
		return 0
	}, take)
	return begin, end
}

// tools cuts the offered tools, byte for byte.
func (t text) tools(f *llmapi.Facts) (begin, end int) {
	t.cut.reset()
	t.top(f, func(key []byte, i int) int {
		if string(key) != "tools" {
			return 0
		}
		begin, end = i, t.value(i, false)
		t.cut.run(t.body, begin, end)
		return end
	}, nil)
	return begin, end
}

// top walks over the members of the body. take takes some of them and returns where
// they end, 0 for the others; leading, unless it is nil, takes each message before
// the first of the facts. The messages themselves are passed over.
func (t text) top(f *llmapi.Facts, take func(key []byte, i int) int, leading func(i int) int) {
	first, last := len(t.body), -1
	if n := len(f.Sent); n > 0 {
		first, last = f.Sent[0].At, f.Sent[n-1].At
	}
	t.members(t.space(0), func(key []byte, i int) int {
		if end := take(key, i); end > 0 {
			return end
		}
		history := string(key) == "messages" || string(key) == "input"
		if !history || t.at(i) != '[' {
			return t.value(i, false)
		}
		return t.elements(i, func(i int) int {
			switch {
			case i == first:
				return t.value(last, false)
			case i < first && leading != nil:
				return leading(i)
			}
			return t.value(i, false)
		})
	})
}

package llmapi

import "bytes"

// maxUsageFrame bounds the frame that is taken out, and so what is held back.
const maxUsageFrame = 8 << 10

// UsageFilter takes the extra frame out of a chat or completions stream that an
// engine sends when it is asked for usage: the one with an empty choices and a
// usage object. Everything else passes byte for byte. Of an unfinished event it
// holds back only what may still be that frame. It is for one stream.
type UsageFilter struct {
	end     eventEnd
	held    []byte // start of an event that may be the frame
	passing bool   // the rest of the current event passes
}

func NewUsageFilter() *UsageFilter { return new(UsageFilter) }

// Filter takes the next bytes of the stream and appends to dst what the client
// gets of them now.
func (f *UsageFilter) Filter(dst, p []byte) []byte {
	for len(p) > 0 {
		n, ended := f.end.cut(p)
		event := p[:n]
		p = p[n:]
		if f.passing {
			dst = append(dst, event...)
			f.passing = !ended
			continue
		}
		if len(f.held) > 0 || !ended {
			f.held = append(f.held, event...)
			event = f.held
		}
		switch {
		case !mayBeUsageFrame(event):
			dst = append(dst, event...)
			f.passing = !ended
		case !ended:
			return dst // held
		case !isUsageFrame(event):
			dst = append(dst, event...)
		}
		f.held = f.held[:0]
	}
	return dst
}

// Flush appends to dst what is held back when the stream has ended within an
// event.
func (f *UsageFilter) Flush(dst []byte) []byte {
	dst = append(dst, f.held...)
	f.held = f.held[:0]
	return dst
}

// mayBeUsageFrame reports whether an event that begins like this may be the
// frame. Once false for a beginning it is false for all that follows.
func mayBeUsageFrame(event []byte) bool {
	const field, choices = "data:", `"choices":`
	n := min(len(event), len(field))
	if string(event[:n]) != field[:n] || len(event) > maxUsageFrame {
		return false
	}
	_, list, found := bytes.Cut(event, []byte(choices))
	if !found {
		return true
	}
	for _, want := range []byte("[]") {
		if list = bytes.TrimLeft(list, " "); len(list) == 0 {
			return true
		}
		if list[0] != want {
			return false
		}
		list = list[1:]
	}
	return true
}

func isUsageFrame(event []byte) bool {
	_, data := parseEvent(event)
	var f frame
	return f.parse(data) && f.noChoices && f.hasUsage
}

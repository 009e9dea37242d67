package qcal

import (
	"encoding/binary"
	"io"
	"math"

	"qtool/formats/half"
)

// piece is how many numbers are written at a time.
const piece = 1 << 16

func writeFloats(w io.Writer, x []float32) error {
	buf := make([]byte, 4*min(piece, len(x)))
	for len(x) > 0 {
		n := min(piece, len(x))
		half.EncodeF32(buf[:4*n], x[:n])
		if _, err := w.Write(buf[:4*n]); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

func writeDoubles(w io.Writer, x []float64) error {
	var buf []byte
	for _, v := range x {
		buf = binary.LittleEndian.AppendUint64(buf, math.Float64bits(v))
	}
	_, err := w.Write(buf)
	return err
}

func writeInts(w io.Writer, x []int64) error {
	var buf []byte
	for _, v := range x {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(v))
	}
	_, err := w.Write(buf)
	return err
}

func readFloats(data []byte) []float32 {
	out := make([]float32, len(data)/4)
	half.DecodeF32(out, data)
	return out
}

func readDoubles(data []byte) []float64 {
	out := make([]float64, len(data)/8)
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return out
}

func readInts(data []byte) []int64 {
	out := make([]int64, len(data)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return out
}

"""`python -m phalanx.compat.tf1 PROGRAM`: run a TensorFlow 1 program in this process."""

import sys

from phalanx.compat.tf1.program import main

if __name__ == "__main__":
    main(sys.argv[1:])

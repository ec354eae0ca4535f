"""What a training script uses: standard library only. `import spothop as sp` is the door."""

@0xd2f5b1a7c3e84960;

interface Echo {
  echo @0 (bytes :Data) -> (bytes :Data);
}

package com.dinstone.beanstalkc;

public class Job {
    public long getId() {
        return 0;
    }

    public byte[] getData() {
        return null;
    }
}

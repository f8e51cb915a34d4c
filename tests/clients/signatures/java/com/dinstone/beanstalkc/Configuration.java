package com.dinstone.beanstalkc;

public class Configuration {
    public void setServiceHost(String host) {}

    public void setServicePort(int port) {}
}
